"""Translates a valid configuration into each room's frozen config; the only place that knows both."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from service.domain.contract import Allowance, Contract, Excess, Ramp
from service.domain.maintenance import MaintenanceWindow
from service.domain.mark import UNMARKED, Mark
from service.domain.tenant import Tenant
from service.domain.tier import Tier
from service.domain.units import TenantId, TierName
from service.flow.config import BreakerConfig, FlowConfig, RetryConfig, SharingConfig
from service.gateway.cors import CorsPolicy
from service.gateway.promises import CorridorConfig
from service.gateway.server import EdgeConfig
from service.launch.fallback import find_fallbacks, parse_engine_report
from service.launch.profile import WorkerProfile
from service.launch.profiles import build_cpu_small_profile, build_m31_flash_profile
from service.runtime.limits import RelayConfig
from service.settings.checks import find_cross_faults
from service.settings.fault import SettingsRefusedError
from service.settings.load import parse_tree, read_file, validate_parts
from service.settings.parts import Part
from service.settings.schema import LimitSettings, Settings, TierSettings
from service.settings.sold import TenantSettings
from service.settings.source import build_deletion_cost, build_source
from service.store.connect import RedisConfig
from service.workers.addresses import WorkerAddress, parse_address
from service.workers.deletion_cost import DeletionCostConfig
from service.workers.discovery import DnsConfig
from service.workers.health import HealthConfig
from service.workers.kubernetes import KubernetesConfig
from service.workers.pool import PoolConfig
from service.workers.probe import ProbeConfig
from service.workers.watch import FindDeviations, MonitorConfig

CACHE_SALT, ADMIN_TOKEN, CONFIG_FILE = "SLUICE_CACHE_SALT", "SLUICE_ADMIN_TOKEN", "SLUICE_CONFIG"
REDIS_PASSWORD = "SLUICE_REDIS_PASSWORD"  # noqa: S105 - the name of a variable


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a gateway is built from. ``settings`` is the file as written, for operators to look at."""

    settings: Settings
    flow: FlowConfig
    relay: RelayConfig
    edge: EdgeConfig
    corridor: CorridorConfig
    cors: CorsPolicy
    pool: PoolConfig
    monitor: MonitorConfig
    workers: tuple[WorkerAddress, ...]
    source: DnsConfig | KubernetesConfig | None
    deletion_cost: DeletionCostConfig | None
    keys: tuple[tuple[bytes, Tenant, float | None], ...]
    tenants: tuple[Tenant, ...]
    redis: RedisConfig | None
    maintenance: tuple[MaintenanceWindow, ...]

    @property
    def sells(self) -> bool:
        """Whether anybody has a contract: without one nothing was promised that could be held against capacity."""
        return any(tenant.contract is not None for tenant in self.tenants)


T = TypeVar("T")


def load_plan(path: Path, environment: Mapping[str, str], salt: bytes) -> Plan:
    """Read ``path`` and build from it; raises ``SettingsRefusedError`` with every fault there is."""
    return build_plan(load_settings(read_file(path), environment), environment, salt)


def load_tiers(path: Path) -> dict[TierName, Tier]:
    """What ``path`` promises, for whoever is not the gateway and has neither its secrets nor its place; raises
    ``SettingsRefusedError``."""
    return _build_tiers(load_settings(read_file(path), None))


def load_settings(text: str, environment: Mapping[str, str] | None) -> Settings:
    """The settings of ``text``, valid by themselves and together; ``SettingsRefusedError`` carries all faults. What
    the gateway's environment has to hold is not asked where ``environment`` is ``None``."""
    tree, lines, faults = parse_tree(text)
    parts, more = validate_parts(tree, lines)
    faults += more
    faults += find_cross_faults(parts, tree, lines, environment)
    if faults:
        raise SettingsRefusedError(sorted(faults, key=lambda fault: (fault.line is None, fault.line or 0, fault.path)))
    return Settings.model_validate(tree)


def build_plan(settings: Settings, environment: Mapping[str, str], salt: bytes) -> Plan:
    """Translate. ``salt`` is the secret behind the tenants' cache salts."""
    limits = settings.limits
    worker_key = environment.get(settings.pool.api_key_env) if settings.pool.api_key_env else None
    tiers = _build_tiers(settings)
    source = build_source(settings.pool, environment)
    contracts: dict[Contract, Contract] = {}
    tenants = tuple(build_tenant(tenant, contracts) for tenant in settings.tenants)
    return Plan(
        settings=settings,
        flow=_build_flow(settings, find_allowances(tenants)),
        relay=_copy(RelayConfig, limits),
        edge=_copy(EdgeConfig, limits),
        corridor=CorridorConfig(
            settings.model, tiers, queue_ttl_s=limits.queue_ttl_s, salt=salt, worker_key=(worker_key or "").encode()
        ),
        cors=CorsPolicy(frozenset(origin.encode() for origin in settings.cors_origins)),
        pool=_copy(PoolConfig, settings.pool),
        monitor=_build_monitor(settings, worker_key),
        workers=tuple(parse_address(url) for url in settings.pool.workers or ()),
        source=source,
        deletion_cost=build_deletion_cost(settings.pool, source),
        keys=tuple(
            (
                bytes.fromhex(key.hash.removeprefix("sha256:")),
                tenant,
                None if key.expires is None else key.expires.timestamp(),
            )
            for written, tenant in zip(settings.tenants, tenants, strict=True)
            for key in written.keys
        ),
        tenants=tenants,
        redis=build_redis(settings, environment),
        maintenance=tuple(
            MaintenanceWindow(window.start.timestamp(), window.end.timestamp(), window.reason)
            for window in settings.maintenance
        ),
    )


def find_allowances(tenants: Iterable[Tenant]) -> dict[TenantId, Allowance]:
    """Guaranteed worker-seconds by tenant."""
    sold = ((tenant.tenant_id, tenant.contract) for tenant in tenants)
    return {
        tenant_id: contract.work for tenant_id, contract in sold if contract is not None and contract.work is not None
    }


def build_redis(settings: Settings, environment: Mapping[str, str]) -> RedisConfig | None:
    """Where gateways share their state; ``None`` if each keeps its own."""
    if settings.state == "memory":
        return None
    return RedisConfig(settings.state, environment.get(REDIS_PASSWORD) or None, environment.get("SSL_CERT_FILE"))


def _build_tiers(settings: Settings) -> dict[TierName, Tier]:
    return {TierName(name): _build_tier(name, tier) for name, tier in settings.tiers.items()}


def find_profile(name: str) -> WorkerProfile | None:
    """A shipped profile; ``None`` for unknown names."""
    match name:
        case "m3.1-flash":
            return build_m31_flash_profile()
        case "cpu-small":
            return build_cpu_small_profile(Path(os.devnull))
        case _:
            return None


def profile_permits(name: str) -> int | None:
    """How many requests a worker of a shipped profile computes at once; ``None`` for unknown names."""
    profile = find_profile(name)
    return None if profile is None else profile.limits.running_requests


def build_deviation_finder(name: str) -> FindDeviations | None:
    """Reads from a worker's metrics page what it runs other than the profile asks; ``None`` for unknown names."""
    profile = find_profile(name)
    if profile is None:
        return None

    def find(page: bytes) -> tuple[str, ...]:
        report = parse_engine_report(page.decode("utf-8", "replace"))
        return tuple(str(fault) for fault in find_fallbacks(profile, report))

    return find


def _copy(kind: type[T], part: Part) -> T:
    """A config whose fields are settings of the same name; fields that are no settings keep their default."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]  # every config is a dataclass
    given: dict[str, Any] = {name: getattr(part, name) for name in type(part).model_fields if name in names}
    return kind(**given)


def _build_flow(settings: Settings, allowances: Mapping[TenantId, Allowance]) -> FlowConfig:
    limits: LimitSettings = settings.limits
    return FlowConfig(
        requests_per_worker=limits.requests_per_worker
        or profile_permits(settings.pool.profile or "")
        or FlowConfig().requests_per_worker,
        requests_per_new_worker=limits.requests_per_new_worker,
        sharing=SharingConfig(replicas_assumed=limits.replicas_assumed),
        tiers=_build_tiers(settings),
        contracts=allowances,
        queued_requests_max=limits.queued_requests_max,
        queued_tokens_max=limits.queued_tokens_max,
        retry_after_max_s=limits.retry_after_max_s,
        breaker=_copy(BreakerConfig, limits.breaker),
        retry=_copy(RetryConfig, limits.retry),
    )


def _build_monitor(settings: Settings, worker_key: str | None) -> MonitorConfig:
    health, pool = settings.health, settings.pool
    in_cluster = pool.discovery == "kubernetes"
    confirms = in_cluster if pool.confirm_profile is None else pool.confirm_profile
    find_deviations = build_deviation_finder(pool.profile) if confirms and pool.profile else None
    return MonitorConfig(
        interval_s=health.interval_s,
        health_interval_s=health.health_interval_s,
        models_interval_s=health.models_interval_s,
        probe=ProbeConfig(
            read_timeout_s=health.read_timeout_s, total_timeout_s=health.read_timeout_s + 1.0, api_key=worker_key
        ),
        health=HealthConfig(
            required_model=settings.model,
            stall_after_s=health.stall_after_s,
            blind_stall_after_s=health.blind_stall_after_s,
            failures_to_eject=health.failures_to_eject,
            recovery_probes=health.recovery_probes,
            stale_after_s=health.stale_after_s,
            confirms_profile=find_deviations is not None,
            proves_first=in_cluster if health.prove_first is None else health.prove_first,
        ),
        find_deviations=find_deviations,
    )


def _build_tier(name: str, tier: TierSettings) -> Tier:
    return Tier(
        name=TierName(name),
        rank=tier.rank,
        best_effort=tier.best_effort,
        availability=tier.availability,
        attainment=tier.attainment,
        ttft_targets_s=tuple(tier.ttft.items()),
        tpot_target_s=tier.tpot_s,
        queue_ttl_s=tier.queue_ttl_s,
    )


def build_tenant(tenant: TenantSettings, contracts: dict[Contract, Contract]) -> Tenant:
    """One tenant. ``contracts`` are those built so far: equal ones are one object."""
    contract = _build_contract(tenant)
    if contract is not None:
        contract = contracts.setdefault(contract, contract)
    marks = frozenset((Mark.SYNTHETIC,)) if tenant.synthetic else UNMARKED
    return Tenant(
        TenantId(tenant.id), TierName(tenant.tier), tenant.suspended, frozenset(tenant.models), contract, marks
    )


def _build_contract(tenant: TenantSettings) -> Contract | None:
    written = tenant.contract
    if written is None:
        return None
    work = None
    if written.worker_seconds_rate is not None and written.worker_seconds_burst is not None:
        ramp = None if written.ramp is None else Ramp(**written.ramp.model_dump())
        work = Allowance(written.worker_seconds_rate, written.worker_seconds_burst, ramp=ramp)
    return Contract(
        written.requests_per_minute, written.tokens_per_minute, written.concurrency, written.tokens_per_month, work,
        Excess(tenant.excess), tenant.credits, written.stream_continuation,
    )  # fmt: skip
