"""What may be written in the configuration file: names, kinds and bounds of each setting by itself."""

import re
from itertools import pairwise
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from service.flow.limit import FIRST_LIMIT
from service.ledger.location import check_url
from service.settings.parts import Count, Name, Part, Pause, Port, Ratio, Seconds, Size
from service.settings.sold import CapacitySettings, MaintenanceSettings, TenantSettings
from service.workers.addresses import parse_address


class ListenSettings(Part):
    """Where the gateway listens: ``host`` and ``port`` for clients, ``admin_*`` for operators, never public."""

    host: Name = "127.0.0.1"
    port: Port = 8080
    admin_host: Name = "127.0.0.1"
    admin_port: Port = 8081
    tls: "TlsSettings | None" = None


class TlsSettings(Part):
    """Files in PEM form; without them clients are served in the clear, as behind an ingress."""

    cert: Name
    key: Name


def _check_url(url: str) -> str:
    parse_address(url)
    return url


DnsLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


def _check_api_url(url: str) -> str:
    if re.fullmatch(r"https?://[^/\s?#@]+/?", url) is None:
        raise ValueError(f"{url!r} is not the URL of an API server, such as https://10.0.0.1:6443")
    return url.rstrip("/")


class KubernetesSettings(Part):
    """How the API server is reached; in a pod all of it is known."""

    api_server: Annotated[Name, AfterValidator(_check_api_url)] | None = None
    token_file: Name | None = None
    ca_file: Name | None = None
    relist_s: Annotated[float, Field(gt=0, le=30, allow_inf_nan=False)] = 25.0
    deletion_cost: bool = False


class PoolSettings(Part):
    """The workers of one model and how they are found."""

    discovery: Literal["static", "dns", "kubernetes"]
    workers: list[Annotated[Name, AfterValidator(_check_url)]] | None = None
    name: Name | None = None
    port: Port | None = None
    service: DnsLabel | None = None
    port_name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] | None = None
    namespace: DnsLabel | None = None
    kubernetes: KubernetesSettings = KubernetesSettings()
    tls: bool = False
    profile: Name | None = None
    confirm_profile: bool | None = None
    api_key_env: Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$")] | None = None
    connect_timeout_s: Seconds = 2.0
    keep_alive_s: Seconds = 4.0
    idle_max: Count = 512


class HealthSettings(Part):
    """How often workers are asked and when they are judged unhealthy."""

    interval_s: Seconds = 1.0
    health_interval_s: Seconds = 5.0
    models_interval_s: Seconds = 30.0
    read_timeout_s: Seconds = 2.0
    stall_after_s: Seconds = 9.0
    blind_stall_after_s: Seconds = 90.0
    failures_to_eject: Count = 3
    recovery_probes: Count = 2
    stale_after_s: Seconds = 5.0
    prove_first: bool | None = None


class TierSettings(Part):
    """One SLA class. ``ttft``: seconds to the first token by prompt tokens, first edge that fits."""

    rank: Annotated[int, Field(ge=0, le=100)]
    availability: Ratio | None = None
    attainment: Ratio | None = None
    ttft: dict[Annotated[int, Field(gt=0)], Seconds] = Field(default_factory=dict)
    tpot_s: Seconds | None = None
    best_effort: bool = False
    queue_ttl_s: Seconds | None = None

    @model_validator(mode="after")
    def _promises_fit(self) -> Self:
        promised = [name for name in ("availability", "attainment", "ttft", "tpot_s") if getattr(self, name)]
        if self.best_effort and promised:
            raise ValueError(f"best_effort promises nothing, but {' and '.join(promised)} is set")
        if not self.best_effort and self.availability is None:
            raise ValueError("availability is missing; a tier that promises nothing says best_effort: true")
        if bool(self.ttft or self.tpot_s) != (self.attainment is not None):
            raise ValueError("attainment and its targets (ttft, tpot_s) go together: one is set without the other")
        edges = list(self.ttft.items())
        if edges != sorted(edges):
            raise ValueError("ttft must be written with ascending prompt tokens")
        if any(later[1] < earlier[1] for earlier, later in pairwise(edges)):
            raise ValueError("ttft promises a long prompt less time than a short one")
        return self


class RetrySettings(Part):
    """When a failed attempt goes to another worker."""

    attempts_max: Count = 2
    budget_ratio: Annotated[float, Field(ge=0, le=1)] = 0.1
    budget_burst: Annotated[float, Field(ge=0, le=10_000)] = 10.0


class BreakerSettings(Part):
    """When a failing worker is left alone, and for how long."""

    failures_to_open: Count = 3
    open_s: Seconds = 1.0
    open_max_s: Seconds = 30.0
    busy_rest_s: Seconds = 0.5
    busy_rest_max_s: Seconds = 10.0


class LimitSettings(Part):
    """Bounds of connections, bodies, waiting and time."""

    requests_per_worker: Count | None = None
    requests_per_new_worker: Count = FIRST_LIMIT
    replicas_assumed: Count = 4
    queued_requests_max: Count = 1024
    queued_tokens_max: Count = 64_000_000
    queue_ttl_s: Seconds = 30.0
    retry_after_max_s: Seconds = 60.0
    retry: RetrySettings = RetrySettings()
    breaker: BreakerSettings = BreakerSettings()
    connections_max: Count = 8192
    connections_reserve: Count = 64
    head_timeout_s: Seconds = 10.0
    body_timeout_s: Seconds = 60.0
    keep_alive_s: Seconds = 75.0
    body_max_bytes: Size = 64 * 1024 * 1024
    bodies_max_bytes: Size = 1024 * 1024 * 1024
    write_buffer_bytes: Size = 64 * 1024
    first_token_s: Seconds = 300.0
    inter_token_s: Seconds = 60.0
    whole_s: Seconds = 1800.0
    client_stall_s: Seconds = 60.0
    heartbeat_after_s: Seconds = 20.0
    heartbeat_every_s: Seconds = 15.0
    drain_delay_s: Pause = 5.0
    grace_s: Seconds = 600.0


class LogSettings(Part):
    """What is written to standard error, one JSON object a line; what is remembered of decisions, and where."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    requests: Literal["none", "failures", "all"] = "failures"
    decisions: Annotated[int, Field(ge=16, le=1_000_000)] = 4096
    journal: Name | None = None
    journal_max_bytes: Size = 1024 * 1024 * 1024


def _check_origin(origin: str) -> str:
    if origin != "*" and re.fullmatch(r"https?://[^/\s?#@]+", origin) is None:
        raise ValueError(f"{origin!r} is not an origin such as https://app.example.com, nor *")
    return origin


class RecordSettings(Part):
    """Where entries of the ledger wait for its database, how much of the disk they may take, and how many calendar
    months before the present one keep their entries (rollups are kept for good)."""

    spool: Name = "var/spool"
    spool_max_bytes: Annotated[int, Field(ge=1024 * 1024, le=1 << 40)] = 2 * 1024 * 1024 * 1024
    retention_months: Annotated[int, Field(ge=1, le=1200)] = 13


def _check_ledger(url: str) -> str:
    check_url(url)
    return url


def _check_state(state: str) -> str:
    if state == "memory":
        return state
    parts = urlsplit(state)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or re.fullmatch(r"/?\d*", parts.path) is None:
        raise ValueError("must be memory, redis://HOST:PORT/DB or, with TLS, rediss://HOST:PORT/DB")
    if parts.password is not None or parts.query:
        raise ValueError("must not carry a password or options: the password belongs in SLUICE_REDIS_PASSWORD")
    return state


class Settings(Part):
    """The whole file."""

    model: Name
    pool: PoolSettings
    tiers: Annotated[dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")], TierSettings], Field(min_length=1)]
    tenants: list[TenantSettings]
    listen: ListenSettings = ListenSettings()
    limits: LimitSettings = LimitSettings()
    health: HealthSettings = HealthSettings()
    capacity: CapacitySettings = CapacitySettings()
    cors_origins: list[Annotated[str, AfterValidator(_check_origin)]] = Field(default_factory=list)
    state: Annotated[str, AfterValidator(_check_state)] = "memory"
    logs: LogSettings = LogSettings()
    maintenance: list[MaintenanceSettings] = Field(default_factory=list)
    ledger: Annotated[Name, AfterValidator(_check_ledger)] | None = "sqlite:///var/ledger.db"
    record: RecordSettings = RecordSettings()
    credits: dict[Name, dict[Ratio, Annotated[float, Field(ge=0, le=1)]]] = Field(default_factory=dict)


NOT_YET = {
    "trusted_proxies": "forwarded addresses are not read by this version",
}
"""Settings of the documented shape that have no effect here: refused rather than ignored."""
