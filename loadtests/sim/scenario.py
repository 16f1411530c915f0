"""Named scenarios as data: who sends what to which machines, what breaks when, and what is measured."""

from dataclasses import dataclass, field, replace
from enum import Enum

from loadtests.sim import lengths, population
from loadtests.sim.arrivals import Process, Stretch, TraceProcess, build_burst, build_diurnal, build_ramp, build_step
from loadtests.sim.bounds import compute_peak
from loadtests.sim.lengths import Classes, MeanSize, Mix, SizeClass, Spread, TraceSizes
from loadtests.sim.population import Client, Retry, TenantSpec, TierSpec
from loadtests.sim.sensor import SensorConfig
from service.emulator.profiles import CPU_SMALL, PROFILES, EngineProfile

ANCHOR = replace(
    CPU_SMALL,
    name="cpu-anchor",
    # Fitted to the comparison on a real engine (16 sequences): peak 51 requests a second of 64 tokens, 2.5 ms alone.
    cost=replace(CPU_SMALL.cost, base_s=0.00234, per_token_s=0.00016, noise_cv=0.05),
)
ALL_PROFILES: dict[str, EngineProfile] = {**PROFILES, ANCHOR.name: ANCHOR}


class FaultKind(Enum):
    """What can go wrong with a worker, or with everything."""

    DEATH = "death"
    """The process is gone until it is started again."""
    SLOW = "slow"
    """Steps take ``factor`` times as long."""
    ZOMBIE = "zombie"
    """Accepts requests, answers health checks and yields nothing."""
    ACCEPT_COLLAPSE = "accept_collapse"
    """Drafts are accepted ``factor`` times as often."""
    KV_CLIFF = "kv_cliff"
    """Only ``factor`` of the KV blocks are left."""
    DRAIN = "drain"
    """The operator wants it empty."""
    GATEWAY_RESTART = "gateway_restart"
    """The gateway forgets everything; all its connections break."""
    ALL_CANCEL = "all_cancel"
    """Every client that waits or reads leaves at once."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``kind`` from ``at_s`` to ``until_s`` (to the end if ``None``) at ``worker`` (every one if ``None``)."""

    kind: FaultKind
    at_s: float
    until_s: float | None = None
    worker: int | None = None
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """One experiment. Load 1 offers ``workers`` x ``worker_rps`` (computed from the mix if ``None``).

    What arrives from ``warmup_s`` on for ``duration_s`` is measured; the run goes on for ``settle_s`` after that.
    ``batched_tokens``: the engine's budget per step, if not the profile's. ``spike``: (begin, end) after which recovery
    is timed.
    """

    name: str
    about: str
    tenants: tuple[TenantSpec, ...]
    tiers: tuple[TierSpec, ...] = (population.PRIORITY, population.DEFAULT, population.FLEX)
    mix: Mix = lengths.MIXED
    load: float = 1.0
    loads: tuple[float, ...] = ()
    profile: str = "m3.1-flash"
    workers: int = 8
    worker_rps: float | None = None
    batched_tokens: int | None = None
    warmup_s: float = 20.0
    duration_s: float = 100.0
    settle_s: float = 25.0
    faults: tuple[Fault, ...] = ()
    sensor: SensorConfig = field(default_factory=SensorConfig)
    spike: tuple[float, float] | None = None

    @property
    def engine_profile(self) -> EngineProfile:
        """The machine."""
        return ALL_PROFILES[self.profile]

    @property
    def until_s(self) -> float:
        """When the last request arrives."""
        return self.warmup_s + self.duration_s

    def find_tier(self, name: str) -> TierSpec:
        """The tier of that name."""
        return next(spec for spec in self.tiers if spec.tier.name == name)

    def compute_mean(self) -> MeanSize:
        """The mean request over all tenants, by their shares."""
        total = sum(tenant.share for tenant in self.tenants)
        means = [(tenant.share / total, lengths.compute_mean(tenant.mix or self.mix)) for tenant in self.tenants]
        return MeanSize(
            sum(share * mean.prompt_tokens for share, mean in means),
            sum(share * mean.uncached_tokens for share, mean in means),
            sum(share * mean.output_tokens for share, mean in means),
        )

    def compute_tightest_tpot_s(self) -> float:
        """The tightest promise per output token among the tiers in use."""
        used = {tenant.tier for tenant in self.tenants}
        targets = [spec.tier.tpot_target_s for spec in self.tiers if spec.tier.name in used]
        return min((target for target in targets if target is not None), default=1e9)

    def compute_capacity_rps(self) -> float:
        """Requests a second at load 1: all machines in the best steady state that keeps the tightest TPOT."""
        if self.worker_rps is not None:
            return self.worker_rps * self.workers
        peak = compute_peak(self.engine_profile, self.compute_mean(), self.compute_tightest_tpot_s())
        return peak.requests_per_s * self.workers


OVERLOADS = (1.2, 2.0, 5.0, 10.0)

SERVICE = (
    TenantSpec("acme", "priority", 0.15, 0.15),
    TenantSpec("bolt", "priority", 0.10, 0.10),
    TenantSpec("core", "default", 0.25, 0.20),
    TenantSpec("dune", "default", 0.20, 0.15),
    TenantSpec("echo", "flex", 0.20, 0.0),
    TenantSpec("fern", "flex", 0.10, 0.0),
)
"""Six tenants whose contracts add up to 60 % of capacity; what exceeds a contract is excess."""


def _vary(**changes: Client | Process) -> tuple[TenantSpec, ...]:
    return tuple(replace(tenant, **changes) for tenant in SERVICE)  # type: ignore[arg-type]


def _shape(shape: tuple[Stretch, ...]) -> tuple[TenantSpec, ...]:
    return _vary(arrivals=Process(shape=shape))


def _list_scenarios() -> list[Scenario]:
    pair = (TenantSpec("high", "hi", 0.3), TenantSpec("low", "lo", 0.7))
    told = Client(Retry.TOLD, retries_max=3)
    storm = Client(Retry.STORM, retries_max=50, storm_gap_s=0.1)
    noisy = replace(SERVICE[3], share=0.02, contract_ratio=0.02, arrivals=Process(shape=build_step(45.0, 100.0)))
    quiet = (*(replace(tenant, share=tenant.share * 0.8) for tenant in SERVICE[:3]), noisy, *SERVICE[4:])
    shift = (
        *(replace(tenant, mix=lengths.CHAT) for tenant in SERVICE[:5]),
        replace(SERVICE[5], mix=lengths.CHAT, arrivals=Process(shape=build_step(60.0, 0.0))),
        TenantSpec("huge", "default", 0.01, 0.01, mix=lengths.HUGE, arrivals=Process(shape=build_ramp(60, 61, 0, 1))),
    )
    longer = SizeClass("longer", 1.0, Spread(6000.0, 0.7, 32_768), Spread(300.0, 0.7, 2048))
    drift = (
        *(replace(tenant, arrivals=Process(shape=build_diurnal(600.0, 0.8, 1.2, 4))) for tenant in SERVICE),
        TenantSpec(
            "grow", "default", 0.04, 0.04, mix=Classes((longer,)), arrivals=Process(shape=build_ramp(1320, 1500, 0, 1))
        ),
    )
    creep = tuple(
        Fault(FaultKind.SLOW, 300.0 + 20.0 * step, 320.0 + 20.0 * step, factor=1.0 + 0.02 * min(step, 20, 40 - step))
        for step in range(1, 40)
    )
    flood = (
        TenantSpec("acme", "priority", 0.94, 0.5),
        TenantSpec("core", "default", 0.03, 0.05),
        TenantSpec("fern", "flex", 0.03, 0.0),
    )
    base = Scenario("steady", "below capacity, nothing happens", SERVICE, load=0.85, loads=(0.5, 0.7, 0.85, 0.95))
    fault = replace(base, load=0.9, loads=(0.9,))
    return [
        base,
        Scenario(
            "uniform",
            "the comparison on a real engine: 30 % hi, 70 % lo, 64 tokens each, all within contract",
            pair,
            tiers=(population.HIGH, population.LOW),
            mix=lengths.UNIFORM,
            loads=OVERLOADS,
            profile=ANCHOR.name,
            worker_rps=39.0,
            warmup_s=5.0,
            duration_s=30.0,
            settle_s=8.0,
        ),
        replace(base, name="mixed", about="overload by short chats, long prompts, long answers", loads=OVERLOADS),
        replace(base, name="mixed-retry", about="the same; refused clients return when told", loads=OVERLOADS,
                tenants=_vary(client=told)),
        replace(base, name="burst", about="ten times the load for 30 s", load=0.7, loads=(0.7,), warmup_s=10.0,
                duration_s=140.0, tenants=_shape(build_burst(40.0, 30.0, 10.0)), spike=(40.0, 70.0)),
        replace(base, name="gamma", about="bursty arrivals, CV 3", loads=(0.7, 0.85, 1.2),
                tenants=_vary(arrivals=Process(cv=3.0))),
        replace(base, name="ramp", about="from half to three times capacity and no way back", loads=(1.0,),
                tenants=_shape(build_ramp(20.0, 110.0, 0.5, 3.0))),
        replace(base, name="diurnal", about="a day in four minutes", loads=(1.0,), duration_s=240.0, warmup_s=10.0,
                tenants=_shape(build_diurnal(240.0, 0.2, 1.6, 2))),
        replace(base, name="noisy", about="one tenant multiplies its load by 100", loads=(0.7,), tenants=quiet,
                spike=(45.0, 120.0)),
        replace(base, name="trickle", about="the dearest tier floods, the others only trickle", loads=(2.0,),
                duration_s=300.0, tenants=flood),
        replace(base, name="mix-shift", about="short chats, then 100k prompts as well", loads=(0.8,), tenants=shift),
        replace(base, name="thinking", about="long answers after long thought", mix=lengths.THINKING,
                loads=(0.85, 1.2, 2.0), duration_s=120.0),
        replace(base, name="agentic", about="sessions with growing prefixes, in:out 131:1", mix=lengths.AGENTIC,
                warmup_s=60.0,                loads=(0.85, 1.2, 2.0)),
        replace(fault, name="accept-collapse", about="drafts are no longer accepted", mix=lengths.THINKING,
                faults=(Fault(FaultKind.ACCEPT_COLLAPSE, 60.0, factor=0.17),)),
        Scenario("drift", "step times creep up by 40 % and back, drafts are no longer accepted, prompts grow",
                drift, load=0.95, warmup_s=60.0, duration_s=1800.0, loads=(0.95,),
                faults=(*creep, Fault(FaultKind.ACCEPT_COLLAPSE, 1000.0, 1200.0, factor=0.3))),
        replace(fault, name="kv-cliff", about="5 % of the KV blocks are left",
                faults=(Fault(FaultKind.KV_CLIFF, 60.0, factor=0.05),)),
        replace(fault, name="death", about="one worker dies and comes back after 40 s",
                faults=(Fault(FaultKind.DEATH, 50.0, 90.0, 0),), spike=(50.0, 90.0)),
        replace(fault, name="slow", about="one worker takes twice as long",
                faults=(Fault(FaultKind.SLOW, 50.0, 90.0, 0, 2.0),), spike=(50.0, 90.0)),
        replace(fault, name="zombie", about="one worker accepts and yields nothing for 40 s",
                faults=(Fault(FaultKind.ZOMBIE, 50.0, 90.0, 0),), spike=(50.0, 90.0)),
        replace(fault, name="drain", about="one worker is drained for 40 s",
                faults=(Fault(FaultKind.DRAIN, 50.0, 90.0, 0),), spike=(50.0, 90.0)),
        replace(base, name="stale", about="no scrape succeeds for 30 s", loads=(0.9, 2.0),
                sensor=SensorConfig(lag_s=1.0, loss_ratio=0.1, noise_cv=0.1, dark=(50.0, 80.0))),
        replace(base, name="stale-one", about="one worker's metrics are lost for good", loads=(0.9, 2.0),
                sensor=SensorConfig(dark=(50.0, 1e9), dark_workers=(0,))),
        replace(base, name="storm", about="refused clients come back ten times a second", loads=(1.5,),
                tenants=_vary(client=storm)),
        replace(base, name="impatient", about="clients leave after 8 s without a token", loads=(2.0,),
                tenants=_vary(client=Client(patience_s=8.0))),
        replace(fault, name="gateway-restart", about="the gateway forgets everything",
                faults=(Fault(FaultKind.GATEWAY_RESTART, 60.0),), spike=(60.0, 61.0)),
        replace(base, name="cancel", about="all clients leave at once", loads=(2.0,),
                faults=(Fault(FaultKind.ALL_CANCEL, 60.0),), spike=(60.0, 61.0)),
        *(
            replace(
                base, name=name, about=f"replay of {name}, scaled in time", mix=TraceSizes(name),
                loads=(0.85, 1.2, 2.0),
                tenants=tuple(
                    replace(one, mix=TraceSizes(name, place / 6), arrivals=TraceProcess(name, place / 6))
                    for place, one in enumerate(SERVICE)
                ),
            )
            for name in ("azure-conv", "azure-code", "mooncake")
        ),
    ]  # fmt: skip


SCENARIOS: dict[str, Scenario] = {scenario.name: scenario for scenario in _list_scenarios()}


def shorten(scenario: Scenario) -> Scenario:
    """A quick look: two workers, and a third of the time where no moments are named."""
    dark = scenario.sensor.dark is not None
    if scenario.faults or scenario.spike or dark or scenario.name in ("ramp", "diurnal", "mix-shift"):
        return replace(scenario, workers=2)
    return replace(scenario, workers=2, warmup_s=scenario.warmup_s / 2, duration_s=scenario.duration_s / 3)
