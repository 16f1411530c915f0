"""What may be written of tenants, their keys and contracts, of capacity to back these, and of announced maintenance."""

from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from service.settings.parts import Count, Name, Part


class MaintenanceSettings(Part):
    """One announced window. Moments need their zone: 2026-12-05T02:00:00Z."""

    start: AwareDatetime
    end: AwareDatetime
    reason: Name

    @model_validator(mode="after")
    def _ends_later(self) -> Self:
        if self.end <= self.start:
            raise ValueError("the window ends before it has begun")
        return self


class KeySettings(Part):
    """One API key of a tenant, as ``sluice keys new`` prints it. The key itself is never written down."""

    hash: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    prefix: Annotated[str, Field(pattern=r"^sk-sluice-[A-Za-z0-9_-]{4}$")]
    expires: AwareDatetime | None = None


class RampSettings(Part):
    """How fast guaranteed work may grow: to ``growth`` times its mean over the last ``window_s``, or to the share
    ``floor`` of the rate."""

    growth: Annotated[float, Field(gt=1, le=100, allow_inf_nan=False)] = 2.0
    window_s: Annotated[float, Field(ge=10, le=86_400, allow_inf_nan=False)] = 300.0
    floor: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.1


class ContractSettings(Part):
    """What a tenant bought beside its tier: limits, and guaranteed capacity in worker-seconds per second."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    concurrency: Count | None = None
    tokens_per_month: Annotated[int, Field(ge=1, le=10**15)] | None = None
    worker_seconds_rate: Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)] | None = None
    worker_seconds_burst: Annotated[float, Field(gt=0, le=10_000_000, allow_inf_nan=False)] | None = None
    ramp: RampSettings | None = None
    stream_continuation: bool = True

    @model_validator(mode="after")
    def _rate_and_burst(self) -> Self:
        if (self.worker_seconds_rate is None) != (self.worker_seconds_burst is None):
            raise ValueError("worker_seconds_rate and worker_seconds_burst go together: one is set without the other")
        if self.ramp is not None and self.worker_seconds_rate is None:
            raise ValueError("ramp says how worker_seconds_rate is grown into: set that, or remove ramp")
        return self


class TenantSettings(Part):
    """Who pays. ``models`` empty means every model of the pool."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    tier: Name
    keys: list[KeySettings] = Field(default_factory=list)
    suspended: bool = False
    models: list[Name] = Field(default_factory=list)
    synthetic: bool = False
    contract: ContractSettings | None = None
    excess: Literal["run", "refuse"] = "refuse"
    credits: Name = "standard"


class CapacitySettings(Part):
    """What one worker does within the targets, and what becomes of a configuration that sells more than there is."""

    workers: Count | None = None
    tokens_per_minute: Annotated[float, Field(gt=0, le=10**12, allow_inf_nan=False)] | None = None
    requests_per_minute: Annotated[float, Field(gt=0, le=10**9, allow_inf_nan=False)] | None = None
    usable_ratio: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.75
    spare_workers: Annotated[int, Field(ge=0, le=1000)] = 1
    oversold: Literal["warn", "refuse"] = "warn"
