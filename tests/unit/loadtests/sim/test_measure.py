"""Verdicts, ratios and series, each on cases small enough to count by hand."""

import pytest

from loadtests.sim.lengths import Size
from loadtests.sim.measure import (
    Fate,
    RunFigures,
    TierFigures,
    Verdict,
    check_conservation,
    compute_fair_shares,
    compute_jain,
    compute_percentile,
    count_sign_changes,
    find_fate,
    find_miss,
    find_recovery_s,
    judge,
)
from loadtests.sim.population import HIGH, Offer
from loadtests.sim.world import Attempt
from service.domain.outcome import Outcome

TIER = HIGH.tier  # first token within 1 s, 50 ms per token


def build(outcome=None, first=None, end=None, tokens=0, name="r"):
    attempt = Attempt(name, Offer(0, 0.0, 0, Size(10, 10), 40, 0.5), 0, True, 0.0)
    attempt.outcome, attempt.first_token_at, attempt.ended_at = outcome, first, end
    attempt.output_tokens = tokens
    return attempt


@pytest.mark.parametrize(
    ("attempt", "fate", "verdict"),
    [
        (build(Outcome.COMPLETED, 0.9, 1.4, 11), Fate.COMPLETED, Verdict.GOOD),
        (build(Outcome.COMPLETED, 0.9, 0.9, 1), Fate.COMPLETED, Verdict.GOOD),
        (build(Outcome.COMPLETED, 1.1, 1.4, 11), Fate.COMPLETED, Verdict.BAD),
        (build(Outcome.COMPLETED, 0.9, 1.5, 11), Fate.COMPLETED, Verdict.BAD),
        (build(Outcome.QUEUE_FULL, None, 0.0), Fate.REFUSED, Verdict.BAD),
        (build(Outcome.WORKER_BUSY, None, 0.1), Fate.REFUSED, Verdict.BAD),
        (build(Outcome.EXPIRED, None, 1.0), Fate.EXPIRED, Verdict.BAD),
        (build(Outcome.STREAM_BROKEN, 0.5, 1.0, 5), Fate.FAILED, Verdict.BAD),
        (build(Outcome.CLIENT_GONE_QUEUED, None, 0.5), Fate.ABANDONED, Verdict.EXCLUDED),
        (build(Outcome.CLIENT_GONE_QUEUED, None, 8.0), Fate.ABANDONED, Verdict.BAD),
        (build(Outcome.CLIENT_GONE, 0.5, 8.0), Fate.ABANDONED, Verdict.EXCLUDED),
        (build(None, 9.5, None, 3), Fate.LIVE, Verdict.BAD),
        (build(None, 0.5, None, 3), Fate.LIVE, Verdict.BAD),
        (build(None, 0.5, None, 300), Fate.LIVE, Verdict.EXCLUDED),
        (build(None, None, None), Fate.LIVE, Verdict.BAD),
    ],
)
def test_every_end_has_its_fate_and_verdict(attempt, fate, verdict):
    assert find_fate(attempt) is fate
    assert judge(attempt, TIER, 10.0) is verdict


@pytest.mark.parametrize(
    ("attempt", "reason"),
    [
        (build(Outcome.QUEUE_FULL, None, 0.0), "refused"),
        (build(Outcome.COMPLETED, 1.1, 9.0, 11), "late"),
        (build(Outcome.COMPLETED, 0.9, 9.0, 11), "slow"),
        (build(), "late"),
    ],
)
def test_misses_have_one_reason(attempt, reason):
    assert find_miss(attempt, TIER) == reason


def test_one_that_may_still_be_in_time_is_not_judged():
    assert judge(build(), TIER, 0.5) is Verdict.EXCLUDED


def test_percentiles_are_samples():
    assert compute_percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert compute_percentile(range(1, 101), 0.99) == 99
    assert compute_percentile([], 0.5) is None


def test_jain():
    assert compute_jain([1.0, 1.0, 1.0]) == 1.0
    assert compute_jain([1.0, 0.0]) == 0.5
    assert compute_jain([0.0]) is None


def test_fair_shares_fill_the_modest_first():
    assert compute_fair_shares(10.0, [2.0, 100.0, 100.0], [1.0, 1.0, 1.0]) == [2.0, 4.0, 4.0]
    assert compute_fair_shares(9.0, [100.0, 100.0], [2.0, 1.0]) == [6.0, 3.0]
    assert compute_fair_shares(9.0, [1.0, 0.0], [1.0, 1.0]) == [1.0, 0.0]


def test_turns_are_counted_beyond_a_band():
    assert count_sign_changes([]) == 0
    assert count_sign_changes([0.0, 0.5, 1.0]) == 0
    assert count_sign_changes([0.0, 0.5, 0.0, 0.5]) == 2
    assert count_sign_changes([0.50, 0.52, 0.49, 0.51]) == 0


def test_recovery_must_last():
    good, bad = [2, 2, 0, 0], [2, 1, 1, 0]
    timeline = dict(enumerate([good] * 10 + [bad] * 3 + [good] * 2 + [bad] + [good] * 9))
    assert find_recovery_s(timeline, (5.0, 10.0)) == 6.0
    assert find_recovery_s(dict.fromkeys(range(30), bad), (5.0, 10.0)) is None


def test_ratios_come_from_summed_counts():
    one, other = RunFigures("s", "a", 1.0, 10.0, 1, good=5), RunFigures("s", "a", 1.0, 30.0, 1, good=35)
    one.tiers["hi"] = TierFigures(offered=4, good=1, bad=3, contract_good=1, contract_bad=1)
    other.tiers["hi"] = TierFigures(offered=100, good=99, bad=1, contract_good=90, contract_bad=0, contract_lost=0)
    one.add(other)
    assert one.goodput_rps == 1.0
    assert one.tiers["hi"].attainment == 100 / 104
    assert one.tiers["hi"].contract_attainment == 91 / 92
    assert one.tiers["hi"].availability == 1.0
    assert TierFigures().attainment is None
    assert RunFigures("s", "a", 1.0).wasted_ratio is None


def test_calibration_is_by_window():
    tier = TierFigures()
    assert tier.compute_calibration() is None
    tier.predicted = [(float(second), 1.0, 2.0, 1.0) for second in range(190)]
    tier.predicted += [(700.0, 1.0, 2.0, 4.0)] * 10 + [(700.0, 1.0, 2.0, 1.0)] * 90
    assert tier.compute_calibration() == (0.0, 0.9, 280 / 290)


def test_conservation_catches_doubles_and_disorder():
    assert check_conservation([build(name="a"), build(Outcome.EXPIRED, None, 1.0, name="b")]) == {
        "live": 1,
        "expired": 1,
    }
    with pytest.raises(ValueError, match="twice"):
        check_conservation([build(name="a"), build(name="a")])
    with pytest.raises(ValueError, match="a: "):
        check_conservation([build(Outcome.COMPLETED, 2.0, 1.0, name="a")])
    with pytest.raises(ValueError, match="a: "):
        check_conservation([build(Outcome.COMPLETED, name="a")])
