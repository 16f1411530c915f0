"""Maintenance that was announced to customers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """Requests that arrive from ``starts_at`` on and before ``ends_at`` are excluded. Seconds since 1970 UTC."""

    starts_at: float
    ends_at: float
    reason: str

    def covers(self, moment: float) -> bool:
        """Whether ``moment`` is within."""
        return self.starts_at <= moment < self.ends_at
