"""What may be written of contracts, of the capacity behind them, and of the store in which gateways share them."""

import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from service.settings.part import Count, Part


class ContractSettings(Part):
    """What a tenant bought beside its tier: limits, and guaranteed capacity in worker-seconds per second."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    concurrency: Count | None = None
    tokens_per_month: Annotated[int, Field(ge=1, le=10**15)] | None = None
    worker_seconds_rate: Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)] | None = None
    worker_seconds_burst: Annotated[float, Field(gt=0, le=10_000_000, allow_inf_nan=False)] | None = None
    stream_continuation: bool = True

    @model_validator(mode="after")
    def _rate_and_burst(self) -> Self:
        if (self.worker_seconds_rate is None) != (self.worker_seconds_burst is None):
            raise ValueError("worker_seconds_rate and worker_seconds_burst go together: one is set without the other")
        return self


class CapacitySettings(Part):
    """What one worker does within the targets, and what becomes of a configuration that sells more than there is."""

    workers: Count | None = None
    tokens_per_minute: Annotated[float, Field(gt=0, le=10**12, allow_inf_nan=False)] | None = None
    requests_per_minute: Annotated[float, Field(gt=0, le=10**9, allow_inf_nan=False)] | None = None
    usable_ratio: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.75
    spare_workers: Annotated[int, Field(ge=0, le=1000)] = 1
    oversold: Literal["warn", "refuse"] = "warn"


def check_state(state: str) -> str:
    """``memory``, or where the shared store is; raises ValueError with the cure."""
    if state == "memory":
        return state
    parts = urlsplit(state)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or re.fullmatch(r"/?\d*", parts.path) is None:
        raise ValueError("must be memory, redis://HOST:PORT/DB or, with TLS, rediss://HOST:PORT/DB")
    if parts.password is not None or parts.query:
        raise ValueError("must not carry a password or options: the password belongs in SLUICE_REDIS_PASSWORD")
    return state
