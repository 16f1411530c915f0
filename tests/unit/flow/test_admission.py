"""What a request is, and whether it may wait."""

import random
from dataclasses import replace

import pytest

from service.domain.contract import Allowance, Measure
from service.domain.outcome import Outcome
from service.domain.tier import Tier
from service.flow.admission import (
    assess,
    build_grounds,
    displace_for,
    find_bar,
    find_refusal,
    find_ttft_target_s,
    foresee_wait_s,
    is_browned_out,
    name_lateness,
)
from service.flow.band import BEST_EFFORT, EXCESS, is_guaranteed
from service.flow.config import FlowConfig, SheddingConfig
from service.flow.retry import RetryBudget
from service.flow.state import FlowState
from tests.support.flow import build_entry, build_request

GOLD = Tier("gold", 0, ttft_targets_s=((1000, 0.5), (10_000, 2.0)), tpot_target_s=0.05)
SILVER = Tier("silver", 1, ttft_targets_s=((10_000, 4.0),))
BATCH = Tier("batch", 2, best_effort=True)
TIERS = {tier.name: tier for tier in (GOLD, SILVER, BATCH)}


def build_state(**how):
    state = FlowState(FlowConfig(tiers=TIERS, **how), random.Random(1), RetryBudget(1.0))
    state.ledger.join("a")
    state.ledger.worker("a").healthy = True
    state.ledger.sort_out(state.config.requests_per_worker)
    return state


def find_capacity(state):
    """From here on the pool's capacity counts as known: eight permits."""
    limit = state.ledger.worker("a").limit
    limit.limit, limit._found = 8, True
    state.ledger.sort_out(state.config.requests_per_worker)
    state.tpot_s = 0.02


@pytest.mark.parametrize(("tokens", "target_s"), [(0, 0.5), (1000, 0.5), (1001, 2.0), (99_999, 2.0)])
def test_the_promise_depends_on_the_prompt(tokens, target_s):
    assert find_ttft_target_s(GOLD, tokens) == target_s


def test_without_a_tier_nothing_is_promised():
    assert find_ttft_target_s(None, 10) is None
    assert find_ttft_target_s(BATCH, 10) is None


def test_a_promise_leaves_time_for_the_prompt():
    entry = assess(build_state(), build_request("r", arrived_at=5.0, tier="gold", rank=0), 5.0)
    assert entry.band == 0
    assert entry.due_at == 5.5
    assert 5.25 <= entry.give_up_at < 5.5
    assert entry.tpot_s == 0.05


def test_what_even_an_idle_worker_could_not_keep_is_served_as_well_as_may_be():
    entry = assess(build_state(), build_request("r", tier="gold", rank=0, prompt_bytes=3_200_000), 0.0)
    assert entry.due_at is None
    assert entry.give_up_at == 10.0


def test_a_pace_that_nobody_gets_even_alone_is_promised_to_nobody():
    state = build_state()
    state.ledger.common.observe(1.0, 0.06)
    assert assess(state, build_request("r", tier="gold", rank=0), 0.0).tpot_s is None


def test_beyond_its_contract_deadline_and_pace_are_kept_too():
    state = build_state(contracts={"tenant": Allowance(0.0, 1.0, Measure.REQUESTS)})
    bands = [assess(state, build_request(name, tier="gold", rank=0), 0.0).band for name in "rs"]
    assert bands == [0, EXCESS]
    excess = assess(state, build_request("t", tier="gold", rank=0), 0.0)
    assert (excess.due_at, excess.tpot_s) == (0.5, 0.05)


def test_what_the_shortest_answers_have_to_spare():
    state = build_state()
    assert assess(state, build_request("r", tier="gold", rank=0), 0.0).spare_tokens == 0.0
    for _ in range(1000):
        state.short("gold").observe(50)
    spare = assess(state, build_request("s", tier="gold", rank=0), 0.0).spare_tokens
    assert spare == pytest.approx(0.3 * 44.0, abs=2.0)
    bounded = assess(state, build_request("t", tier="gold", rank=0, max_output_tokens=10), 0.0)
    assert bounded.spare_tokens == pytest.approx(0.3 * 4.0)
    assert assess(state, build_request("u"), 0.0).spare_tokens == 0.0


class TestBar:
    def test_nobody_is_there(self):
        state = build_state()
        state.ledger.leave("a")
        state.ledger.sort_out(8)
        assert find_bar(state, build_entry("r"), 0.0) is Outcome.NO_WORKERS

    def test_its_worker_is_gone(self):
        assert find_bar(build_state(), build_entry("r", pinned_to="z"), 0.0) is Outcome.UNKNOWN_RESPONSE
        assert find_bar(build_state(), build_entry("r", pinned_to="a"), 0.0) is None

    def test_its_promise_is_lost(self):
        assert find_bar(build_state(), build_entry("r", due_at=1.0), 1.5) is Outcome.DEADLINE_UNATTAINABLE

    def test_the_operator_keeps_it_out(self):
        state = build_state(shedding=SheddingConfig(brownout_forced=1))
        assert find_bar(state, build_entry("r", band=BEST_EFFORT), 0.0) is Outcome.SHED


@pytest.mark.parametrize(
    ("level", "kept"),
    [(0, [0, 1, EXCESS, BEST_EFFORT]), (1, [0, 1, EXCESS]), (2, [0, 1]), (3, [0])],
)
def test_each_level_of_brownout_keeps_more_out(level, kept):
    """I11: a higher level never lets in what a lower one keeps out, nor a cheaper band what a dearer may not."""
    bands = [0, 1, EXCESS, BEST_EFFORT]
    assert [band for band in bands if not is_browned_out(level, band, build_state())] == kept


def test_the_only_tier_is_never_browned_out():
    state = FlowState(FlowConfig(tiers={"gold": GOLD}), random.Random(1), RetryBudget(1.0))
    assert not is_browned_out(3, 0, state)


class TestWait:
    def test_before_capacity_is_found_nothing_is_foreseen(self):
        assert foresee_wait_s(build_state(), build_entry("r"), 0.0) is None

    def test_eight_permits_drain_eight_seconds_in_one(self):
        state = build_state()
        find_capacity(state)
        state.room.add(build_entry("ahead", hold_s=8.0, ttl_s=1.0, sequence=1))
        assert foresee_wait_s(state, build_entry("r", tenant="other", hold_s=8.0), 0.0) == 1.0

    def test_dearer_traffic_takes_its_part(self):
        state = build_state()
        find_capacity(state)
        state.room.add(build_entry("ahead", hold_s=8.0, ttl_s=1.0, sequence=1))
        state.offered.observe(0, 4.0 / (0.6931471805599453 / 5.0), 0.5, 0.0)  # 4 permit-seconds a second, half of all
        assert foresee_wait_s(state, build_entry("r", tenant="other", hold_s=8.0), 0.0) == pytest.approx(2.0)

    def test_without_permits_nothing_is_foreseen(self):
        state = build_state()
        find_capacity(state)
        state.ledger.permits = 0
        assert foresee_wait_s(state, build_entry("r"), 0.0) is None


class TestLateness:
    """A deadline of the client's own, where it is the earlier one, is the client's to miss."""

    @pytest.mark.parametrize("outcome", [Outcome.EXPIRED, Outcome.DEADLINE_UNATTAINABLE])
    def test_its_own_deadline(self, outcome):
        request = build_request("r", arrived_at=5.0, deadline_at=5.1, tier="gold", rank=0, hinted=True)
        assert name_lateness(assess(build_state(), request, 5.0), outcome) is Outcome.CLIENT_DEADLINE

    @pytest.mark.parametrize("how", [{"hinted": False, "deadline_at": 5.1}, {"hinted": True, "deadline_at": 60.0}])
    def test_ours(self, how):
        request = build_request("r", arrived_at=5.0, tier="gold", rank=0, **how)
        assert name_lateness(assess(build_state(), request, 5.0), Outcome.EXPIRED) is Outcome.EXPIRED

    def test_what_is_not_late(self):
        request = build_request("r", arrived_at=5.0, deadline_at=5.1, tier="gold", rank=0, hinted=True)
        assert name_lateness(assess(build_state(), request, 5.0), Outcome.SHED) is Outcome.SHED


class TestRefusal:
    @pytest.mark.parametrize(("band", "outcome"), [(0, Outcome.DEADLINE_UNATTAINABLE), (EXCESS, Outcome.SHED)])
    def test_who_would_wait_too_long(self, band, outcome):
        entry = build_entry("r", band=band, due_at=2.0)
        assert find_refusal(build_state(), entry, 2.5, 0.0) is outcome
        assert find_refusal(build_state(), entry, 1.5, 0.0) is None
        assert find_refusal(build_state(), entry, None, 0.0) is None

    def test_a_full_queue(self):
        state = build_state(queued_requests_max=1)
        state.room.add(build_entry("waits"))
        assert find_refusal(state, build_entry("r"), None, 0.0) is Outcome.QUEUE_FULL
        assert find_refusal(state, build_entry("b", band=BEST_EFFORT), None, 0.0) is Outcome.QUEUE_FULL

    def test_who_makes_room_for_a_promise(self):
        state = build_state(queued_tokens_max=300)
        for number, band in enumerate((1, EXCESS, BEST_EFFORT)):
            state.room.add(build_entry(f"w{number}", band=band, sequence=number))
        entry = build_entry("r", band=0, tokens=200)
        assert find_refusal(state, entry, None, 0.0) is None
        assert [left.request.request_id for left in displace_for(state, entry)] == ["w2", "w1"]
        assert find_refusal(state, build_entry("s", band=0, tokens=201), None, 0.0) is Outcome.QUEUE_FULL


def test_what_is_known_of_a_prompt_costs_its_tenant_less():
    state = build_state()
    request = build_request("r", tier="gold", rank=0, prompt_bytes=32_000)
    request.prefix = (1024 << 32, 24_000 << 32)
    before = assess(state, request, 0.0)
    state.prefixes.remember(request.prefix, 1)
    after = assess(state, request, 0.0)
    assert after.estimate == before.estimate
    assert before.work_s - after.work_s == pytest.approx(0.05 * 10 * 0.75 * 0.5, rel=0.01)  # half of it is believed


def test_whoever_waits_is_told_of_a_bound_that_holds_nineteen_times_in_twenty():
    state = build_state()
    entry = assess(state, build_request("r", tier="gold", rank=0), 0.0)
    assert build_grounds(state, entry, None, 0.0).bound_s is None
    grounds = build_grounds(state, entry, 2.0, 0.0)
    assert entry.foreseen_s == pytest.approx(2.0 + entry.prefill_s)
    assert grounds.bound_s == pytest.approx(entry.foreseen_s * 1.6487, rel=1e-3)
    assert build_grounds(state, entry, 5.0, 0.0).bound_s is None  # what was said first is what counts


def test_behind_others_a_wait_is_foreseen_from_the_last_that_was_sent():
    state = build_state()
    state.last_arrivals[0] = 1.0  # it was sent a while ago, and nobody of its band since
    first, second = build_entry("first", band=0), build_entry("second", band=0)
    build_grounds(state, first, 0.5, 9.0)
    assert first.foreseen_s == pytest.approx(0.5 + first.prefill_s)  # nobody is before it
    state.room.add(first)
    build_grounds(state, second, 0.5, 9.0)
    assert second.foreseen_s == pytest.approx(8.0 + second.prefill_s)


def test_what_is_above_its_contracts_limits_is_excess_whatever_room_its_work_has():
    state = FlowState(FlowConfig(), random.Random(1), RetryBudget(1.0))
    request = build_request("r")
    assert is_guaranteed(assess(state, request, 0.0).band)
    assert not is_guaranteed(assess(state, replace(request, excess=True), 0.0).band)
