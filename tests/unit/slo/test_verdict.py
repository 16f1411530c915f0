"""What each request counts for: the table of statuses, size classes, and traffic outside the contract."""

import pytest

from service.domain.mark import Mark
from service.domain.outcome import Fault, Outcome
from service.domain.tier import Tier
from service.domain.units import RequestId, TierName
from service.gateway.responses import TELLINGS
from service.runtime.account import Accounts, Settlement
from service.slo.verdict import MET, Reason, Result, Standing, choose_ttft, count_prompt, judge

GOOD, BAD, EXCLUDED, NONE = Result.GOOD, Result.BAD, Result.EXCLUDED, Result.NOT_APPLICABLE
PRIORITY = Tier(
    TierName("priority"), 0, availability=0.999, attainment=0.99, ttft_targets_s=((100, 1.0), (1000, 3.0)),
    tpot_target_s=0.025,
)  # fmt: skip
FLEX = Tier(TierName("flex"), 2, best_effort=True)


def settled(outcome=Outcome.COMPLETED, ttft_s=0.5, tpot_s=0.02, tokens=11, marks=(), **more):
    one = Settlement(RequestId("r"), "chat_completions", 1000.0)
    one.outcome, one.stream, one.prompt_tokens, one.output_tokens = outcome, True, 50, tokens
    one.prompt_bytes = 320
    if ttft_s is not None:
        one.first_token_at = 1000.0 + ttft_s
        one.last_token_at = one.first_token_at + tpot_s * (tokens - 1)
    one.marks = frozenset(marks)
    for name, value in more.items():
        setattr(one, name, value)
    return one


def results(verdict):
    return verdict.availability, verdict.ttft, verdict.tpot, verdict.met_all


def test_a_stream_within_all_targets_is_met():
    assert judge(settled(), PRIORITY) is MET


@pytest.mark.parametrize(
    ("change", "reason", "counted"),
    [
        ({"ttft_s": 1.1}, "late", (GOOD, BAD, GOOD, BAD)),
        ({"tpot_s": 0.026}, "slow", (GOOD, GOOD, BAD, BAD)),
        ({"ttft_s": 1.1, "tpot_s": 0.026}, "late", (GOOD, BAD, BAD, BAD)),
    ],
)
def test_a_target_that_was_not_kept_is_our_fault(change, reason, counted):
    verdict = judge(settled(**change), PRIORITY)
    assert (verdict.standing, verdict.reason, verdict.fault) == (Standing.MISSED, reason, Fault.US)
    assert results(verdict) == counted


def test_a_target_is_kept_on_its_edge():
    assert judge(settled(ttft_s=1.0, tpot_s=0.025, tokens=1001), PRIORITY).standing is Standing.MET


@pytest.mark.parametrize(("tokens", "promise"), [(0, (100, 1.0)), (100, (100, 1.0)), (101, (1000, 3.0)), (1001, None)])
def test_the_first_edge_that_fits_says_what_is_promised(tokens, promise):
    assert choose_ttft(PRIORITY, tokens) == promise


def test_nothing_is_promised_where_there_is_no_tier():
    assert choose_ttft(None, 5) is None
    assert results(judge(settled(), None)) == (GOOD, NONE, NONE, GOOD)


def test_a_longer_prompt_is_judged_by_its_own_class():
    assert judge(settled(ttft_s=2.5, prompt_tokens=101), PRIORITY).ttft is GOOD
    assert judge(settled(ttft_s=99.0, prompt_tokens=1001), PRIORITY).ttft is NONE


@pytest.mark.parametrize("told", [None, -1])
def test_a_prompt_without_usage_is_sized_by_its_bytes(told):
    assert count_prompt(settled(prompt_tokens=told)) == 101
    assert judge(settled(prompt_tokens=told, ttft_s=2.5), PRIORITY).ttft is GOOD


@pytest.mark.parametrize(
    "change",
    [{"stream": False}, {"kind": "embeddings"}, {"tokens": 1}, {"output_tokens": None}, {"output_estimated": True}],
)
def test_tpot_needs_a_generating_stream_of_two_tokens_by_usage(change):
    assert judge(settled(tpot_s=9.0, **change), PRIORITY).tpot is NONE


@pytest.mark.parametrize("change", [{"stream": False}, {"kind": "embeddings"}])
def test_only_generating_streams_have_a_first_token(change):
    assert judge(settled(ttft_s=9.0, **change), PRIORITY).ttft is NONE


def test_a_stream_that_completed_without_a_token_has_no_first_one():
    verdict = judge(settled(ttft_s=None), PRIORITY)
    assert results(verdict) == (GOOD, NONE, NONE, GOOD)


STATUSES_EXCLUDED = {400, 401, 403, 404, 408, 413, 422, 429, 499}


@pytest.mark.parametrize("outcome", [one for one in Outcome if one is not Outcome.COMPLETED])
def test_the_table_of_statuses(outcome):
    """What the client is told decides what it counts for; the codes that share a status are told apart."""
    telling = TELLINGS[outcome]
    status, code = (499, "") if telling is None else (telling.status, telling.code)
    excluded = status in STATUSES_EXCLUDED or code == "overloaded_excess" or outcome is Outcome.CLIENT_DEADLINE
    verdict = judge(settled(outcome, ttft_s=None), PRIORITY)
    if excluded:
        assert (verdict.standing, verdict.fault) == (Standing.EXCLUDED, Fault.CLIENT)
        assert results(verdict) == (EXCLUDED,) * 4
    else:
        assert status in {500, 502, 503, 504}
        assert verdict.standing is Standing.MISSED
        assert verdict.fault in {Fault.US, Fault.CAPACITY}
        assert results(verdict) == (BAD, BAD, NONE, BAD)
    assert verdict.reason == outcome.label


def test_a_stream_we_broke_is_judged_by_what_came_of_it():
    verdict = judge(settled(Outcome.STREAM_BROKEN), PRIORITY)
    assert results(verdict) == (BAD, GOOD, GOOD, BAD)
    assert results(judge(settled(Outcome.STREAM_BROKEN, output_estimated=True), PRIORITY)) == (BAD, GOOD, NONE, BAD)


def test_a_request_that_died_with_the_gateway_is_bad():
    verdict = judge(settled(None, ttft_s=None), PRIORITY)
    assert (verdict.standing, verdict.reason, verdict.fault) == (Standing.MISSED, "gateway_fault", Fault.US)
    assert judge(settled(None, marks=[Mark.EXCESS]), PRIORITY).standing is Standing.MISSED


def test_best_effort_may_be_refused_but_not_broken():
    verdict = judge(settled(Outcome.EXPIRED, ttft_s=None), FLEX)
    assert (verdict.standing, verdict.reason) == (Standing.EXCLUDED, Reason.BEST_EFFORT.value)
    assert judge(settled(Outcome.WORKER_FAILED), FLEX).availability is BAD
    assert results(judge(settled(ttft_s=99.0), FLEX)) == (GOOD, NONE, NONE, GOOD)


@pytest.mark.parametrize(
    ("outcome", "counted", "reason"),
    [
        (Outcome.COMPLETED, (GOOD, EXCLUDED, EXCLUDED, EXCLUDED), "excess"),
        (Outcome.EXPIRED, (EXCLUDED,) * 4, "excess"),
        (Outcome.SHED, (EXCLUDED,) * 4, "shed"),
        (Outcome.WORKER_FAILED, (BAD, EXCLUDED, EXCLUDED, BAD), "worker_failed"),
    ],
)
def test_excess_is_promised_no_speed(outcome, counted, reason):
    verdict = judge(settled(outcome, ttft_s=99.0, marks=[Mark.EXCESS]), PRIORITY)
    assert (results(verdict), verdict.reason) == (counted, reason)


@pytest.mark.parametrize("mark", [Mark.RAMP, Mark.MAINTENANCE, Mark.SYNTHETIC])
@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.WORKER_FAILED, Outcome.MALFORMED])
def test_what_the_contract_does_not_cover_counts_neither_way(mark, outcome):
    verdict = judge(settled(outcome, marks=[mark]), PRIORITY)
    assert (verdict.standing, verdict.reason) == (Standing.EXCLUDED, mark.value)
    assert verdict.fault is outcome.fault
    assert results(verdict) == (EXCLUDED,) * 4


@pytest.mark.parametrize("mark", [Mark.CONTINUED, Mark.DOWNGRADED])
def test_other_marks_excuse_nothing(mark):
    assert judge(settled(ttft_s=9.0, marks=[mark]), PRIORITY).reason == "late"


def test_standing_follows_what_all_targets_make_of_it():
    standings = {GOOD: Standing.MET, BAD: Standing.MISSED, EXCLUDED: Standing.EXCLUDED}
    for outcome in Outcome:
        for marks in ((), *((mark,) for mark in Mark)):
            for tier in (PRIORITY, FLEX, None):
                verdict = judge(settled(outcome, marks=marks), tier)
                assert verdict.standing is standings[verdict.met_all]


def test_all_accountants_are_told_one_verdict_by_the_promises_in_force():
    heard = []

    class Listening:
        def settle(self, settlement):
            heard.append(settlement.verdict)

    accounts = Accounts([Listening(), Listening()], {TierName("priority"): PRIORITY})
    late = settled(None, ttft_s=2.0, tier=TierName("priority"))
    accounts.settle(late, Outcome.COMPLETED, 1003.0)
    assert heard[0] is heard[1]
    assert heard[0].reason == "late"
    accounts.tiers = {}
    accounts.settle(settled(None, ttft_s=2.0, tier=TierName("priority")), Outcome.COMPLETED, 1003.0)
    assert heard[2].standing is Standing.MET
    accounts.settle(settled(None, tier=None), Outcome.UNAUTHENTICATED, 1003.0)
    assert heard[4].standing is Standing.EXCLUDED
