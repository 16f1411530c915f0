"""What is said of a request beside its outcome: circumstances that decide whether and how its promise counts."""

from enum import Enum


class Mark(Enum):
    """A circumstance; a request may have several."""

    EXCESS = "excess"
    """Above the tenant's contract: served if there is room, at a lower rank."""

    RAMP = "ramp"
    """The tenant grew faster than its contract allows."""

    MAINTENANCE = "maintenance"
    """It came within an announced maintenance window."""

    SYNTHETIC = "synthetic"
    """Sent by the prober: on nobody's bill."""

    CONTINUED = "continued"
    """Its worker died and another wrote the rest."""

    DOWNGRADED = "downgraded"
    """It was served in a lower tier than its contract's, as it asked."""


UNMARKED: frozenset[Mark] = frozenset()
"""Most requests."""
