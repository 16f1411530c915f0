"""What a scaler has to know of the core."""

from service.domain.tier import Tier
from service.domain.units import TierName
from service.flow.band import BEST_EFFORT, EXCESS, Claim, claim_of
from service.flow.config import FlowConfig
from tests.support.flow import arrive, build_controller


def test_each_band_makes_one_claim() -> None:
    assert claim_of(0) is claim_of(EXCESS - 1) is Claim.GUARANTEED
    assert claim_of(EXCESS) is Claim.EXCESS
    assert claim_of(BEST_EFFORT) is Claim.BEST_EFFORT


def test_demand_is_told_by_claim_and_refused_work_is_in_it() -> None:
    tiers = {TierName("standard"): Tier(TierName("standard"), 1), TierName("flex"): Tier(TierName("flex"), 2, True)}
    core = build_controller(config=FlowConfig(requests_per_worker=1, queued_requests_max=1, tiers=tiers))
    arrive(core, "runs")
    arrive(core, "waits")
    arrive(core, "refused", tier="flex", rank=2)
    demand = core.demand()
    within, excess, best_effort = demand.claims
    assert [claim.claim for claim in demand.claims] == list(Claim)
    assert demand.permits == 1
    assert (within.permits_held, best_effort.permits_held) == (1, 0)
    assert within.offered_work_s > within.queued_work_s > 0.0
    assert best_effort.offered_work_s > 0.0 == best_effort.queued_work_s
    assert (excess.offered_work_s, excess.queued_work_s, excess.permits_held) == (0.0, 0.0, 0)


def test_the_core_names_who_may_go() -> None:
    assert build_controller(("a", "b")).choose_leaving() == "b"
