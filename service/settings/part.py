"""What all parts of the configuration file have in common."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Name = Annotated[str, Field(min_length=1, max_length=256)]


class Part(BaseModel):
    """A mapping of the file: no unknown keys, no silent conversion from text to number, nothing changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
