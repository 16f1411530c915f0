"""The chance that decisions may use."""

from typing import Protocol


class Chance(Protocol):
    """The part of ``random.Random`` the core needs; passed in seeded, so that a run can be repeated."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...
