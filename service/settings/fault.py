"""What is wrong with a configuration, in words its author can act on."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SettingsFault:
    """One thing that is wrong: ``path`` in the file (``tenants[0].tier``), ``line`` where it stands if known."""

    path: str
    message: str
    cure: str = ""
    line: int | None = None

    def __str__(self) -> str:
        where = f"{self.path} (line {self.line})" if self.line is not None else self.path
        cure = f" ({self.cure})" if self.cure else ""
        return f"{where}: {self.message}{cure}"


class SettingsRefusedError(Exception):
    """A configuration that cannot be used; carries every fault, not the first one."""

    def __init__(self, faults: Iterable[SettingsFault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))
