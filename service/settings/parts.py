"""What settings are made of: their base, and kinds of values with bounds."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Pause = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
Ratio = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Size = Annotated[int, Field(ge=1024, le=1 << 40)]
Port = Annotated[int, Field(ge=1, le=65535)]
Name = Annotated[str, Field(min_length=1, max_length=256)]


class Part(BaseModel):
    """A mapping of the file: no unknown keys, no silent conversion from text to number, nothing changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
