"""Says what is owed to a tenant for a month: a share of the bill, by the ladder of its contract."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """Below this availability, this share of the month's bill is credited (both 0..1)."""

    below: float
    credit: float


@dataclass(frozen=True, slots=True)
class Ladder:
    """Steps of a contract, in any order; the largest credit of those that apply is owed."""

    steps: tuple[Step, ...]


STANDARD = Ladder((Step(0.999, 0.10), Step(0.99, 0.25), Step(0.95, 1.0)))
"""The usual ladder of public clouds: 99.9 / 99.0 / 95.0 % -> 10 / 25 / 100 %."""

NO_CREDIT = Ladder(())


def compute_credit(availability: float | None, objective: float | None, ladder: Ladder = STANDARD) -> float:
    """The share of the bill that is owed, 0..1. Nothing is owed where nothing was promised (``objective`` is ``None``),
    where there was no traffic to judge (``availability`` is ``None``), and while the tier's own objective was kept,
    even if the ladder begins above it."""
    if availability is None or objective is None or availability >= objective:
        return 0.0
    return max((step.credit for step in ladder.steps if availability < step.below), default=0.0)
