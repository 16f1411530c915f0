"""What is wrong with a profile or a machine, in words an operator can act on."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: where it was written, what is wrong with it, what cures it."""

    field: str
    message: str
    cure: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}. Cure: {self.cure}."


class LaunchRefusedError(Exception):
    """A worker that must not be started as described; carries every fault, not the first one."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class EngineUnavailableError(Exception):
    """The CPU engine could not be prepared on this machine."""
