"""All that the flow core remembers, apart from the rules that act on it."""

from dataclasses import dataclass, field

from service.domain.units import TenantId, TierName
from service.flow.alarms import Alarms
from service.flow.balance import Chance
from service.flow.band import ContractBucket
from service.flow.calibration import Quantile, ShortAnswer
from service.flow.config import FlowConfig
from service.flow.estimator import Estimator
from service.flow.ledger import PermitLedger
from service.flow.offered import OfferedWork
from service.flow.pace import PrefillPace
from service.flow.prefix import CacheTrust, PrefixTable, SessionTable
from service.flow.queue import WaitingRoom
from service.flow.rereading import RereadBudget
from service.flow.retry import RetryBudget
from service.flow.sharing import Sharing

_ADMISSION_LEVEL = 0.95
"""Share of requests whose first token must come within what was foreseen when they were let in (algorithms 3.7)."""

_WAIT_STEP = 0.01
"""A wait is known to have been foreseen too short only when it is over, and by then many more have been: with steps
three times as long the bound was lowest whenever waits began to grow, and held in 83 to 94 % of them
(``loadtests.sim.prediction``)."""


@dataclass(slots=True)
class FlowState:
    """One gateway's memory. ``prefill`` and ``trust`` are learned over all workers; each worker has its own beside
    them."""

    config: FlowConfig
    chance: Chance
    budget: RetryBudget
    room: WaitingRoom = field(default_factory=WaitingRoom)
    ledger: PermitLedger = field(default_factory=PermitLedger)
    estimator: Estimator = field(default_factory=Estimator)
    offered: OfferedWork = field(default_factory=OfferedWork)
    prefill: PrefillPace = field(default_factory=PrefillPace)
    prefixes: PrefixTable = field(default_factory=PrefixTable)
    sessions: SessionTable = field(default_factory=SessionTable)
    trust: CacheTrust = field(default_factory=CacheTrust)
    buckets: dict[TenantId, ContractBucket] = field(default_factory=dict)
    calibrations: dict[TierName, Quantile] = field(default_factory=dict)
    shorts: dict[TierName, ShortAnswer] = field(default_factory=dict)
    wait_calibrations: dict[TierName, Quantile] = field(default_factory=dict)
    last_arrivals: dict[int, float] = field(default_factory=dict)
    """By band, when the last that was sent from the queue had arrived."""
    alarms: Alarms = field(default_factory=Alarms)
    rereading: RereadBudget = field(default_factory=RereadBudget)
    tpot_s: float | None = None
    mean_hold_s: float | None = None
    """For how long those that were served held a permit: the next is free after as much, divided by all permits."""
    sequence: int = 0
    draining: bool = False
    floor_credit_s: float = 0.0
    sharing: Sharing | None = None

    def calibration(self, tier: TierName) -> Quantile:
        """How far this tier's first tokens come after they were foreseen."""
        quantile = self.calibrations.get(tier)
        if quantile is None:
            quantile = self.calibrations[tier] = Quantile(_ADMISSION_LEVEL, 0.5)
        return quantile

    def short(self, tier: TierName) -> ShortAnswer:
        """How short this tier's answers may be."""
        short = self.shorts.get(tier)
        if short is None:
            short = self.shorts[tier] = ShortAnswer()
        return short

    def wait_calibration(self, tier: TierName) -> Quantile:
        """How far first tokens of those who had to wait come after they were foreseen at their arrival."""
        quantile = self.wait_calibrations.get(tier)
        if quantile is None:
            quantile = self.wait_calibrations[tier] = Quantile(_ADMISSION_LEVEL, 0.5, _WAIT_STEP)
        return quantile

    @property
    def capacity_found(self) -> bool:
        """Whether what at least one usable worker can carry is known rather than still growing, found or capped by the
        operator, and also how long an answer takes there."""
        if self.tpot_s is None:
            return False
        cap = self.config.requests_per_worker
        return any(worker.limit.found or worker.permits >= cap for worker in self.ledger.usable)

    @property
    def loosest_tpot_s(self) -> float | None:
        """The largest time per token that any tier promises; ``None`` where none does, or no worker could keep it."""
        targets = [tier.tpot_target_s for tier in self.config.tiers.values() if tier.tpot_target_s is not None]
        loosest_s = max(targets, default=None)
        return None if loosest_s is None or loosest_s < self.ledger.common.lone_s else loosest_s
