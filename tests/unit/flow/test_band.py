"""Contracts and bands."""

import pytest

from service.domain.contract import Allowance, Measure, Ramp
from service.domain.tier import Tier
from service.flow.band import BEST_EFFORT, EXCESS, RANKS_MAX, ContractBucket, classify, is_excess, is_guaranteed

REQUESTS = Allowance(1.0, 2.0, Measure.REQUESTS)
WORK = Allowance(1.0, 2.0)


def test_bands_go_from_promises_to_excess_to_best_effort():
    gold, batch = Tier("gold", 0), Tier("batch", 2, best_effort=True)
    assert classify(gold, 0, True) == 0
    assert classify(None, 1, True) == 1
    assert classify(gold, 0, False) == EXCESS
    assert classify(None, 1, False) == EXCESS + 1
    assert classify(batch, 2, True) == BEST_EFFORT
    assert classify(None, 99, True) == RANKS_MAX - 1


def test_only_what_was_promised_is_guaranteed():
    assert [is_guaranteed(band) for band in (0, RANKS_MAX - 1, EXCESS, BEST_EFFORT)] == [True, True, False, False]


def test_what_is_above_a_contract_is_told_from_what_was_never_promised():
    assert [is_excess(band) for band in (0, EXCESS, BEST_EFFORT - 1, BEST_EFFORT)] == [False, True, True, False]


def test_a_burst_passes_and_then_the_rate():
    bucket = ContractBucket(2.0, 0.0)
    assert [bucket.take(REQUESTS, 9.0, 0.0) for _ in range(3)] == [True, True, False]
    assert bucket.take(REQUESTS, 9.0, 1.0)
    assert not bucket.take(REQUESTS, 9.0, 1.5)


def test_silence_saves_up_no_more_than_the_burst():
    bucket = ContractBucket(0.0, 0.0)
    assert bucket.take(REQUESTS, 0.0, 1000.0)
    assert bucket.level == 1.0


def test_work_is_counted_in_worker_seconds():
    bucket = ContractBucket(2.0, 0.0)
    assert bucket.take(WORK, 1.5, 0.0)
    assert not bucket.take(WORK, 1.0, 0.0)
    assert bucket.take(WORK, 0.5, 0.0)


@pytest.mark.parametrize("cost", [10.0, 50.0])
def test_one_dearer_than_the_burst_passes_as_rarely_as_its_rate_allows(cost):
    bucket = ContractBucket(2.0, 0.0)
    passed = sum(bucket.take(WORK, cost, float(second)) for second in range(1001))
    assert passed * cost <= 1000.0 + 2.0 + cost
    assert passed == 1 + 1000 // cost


RAMPED = Allowance(10.0, 4.0, Measure.REQUESTS, Ramp(2.0, 300.0, 0.1))


def offer(bucket, per_second, begin, end):
    """So many requests each second from ``begin`` to ``end``: how many of them a second were within the contract, in
    the first and in the last ten seconds."""
    passed = [
        sum(bucket.take(RAMPED, 1.0, second + turn / per_second) for turn in range(per_second))
        for second in range(begin, end)
    ]
    return sum(passed[:10]) / 10, sum(passed[-10:]) / 10


def test_what_grows_faster_than_the_ramp_is_beyond_the_contract_until_it_is_usual():
    bucket = ContractBucket(4.0, 0.0)
    assert offer(bucket, 1, 0, 3600) == (1.0, 1.0)
    first, last = offer(bucket, 10, 3600, 3900)
    assert first == pytest.approx(2.4, abs=0.2)  # twice of one a second, and the burst
    assert 5.0 < last < 6.5  # e times as much every window / (growth - 1)
    assert offer(bucket, 10, 3900, 4200)[1] == pytest.approx(10.0, abs=0.2)


def test_silence_takes_a_ramp_down_to_its_floor_and_a_restart_does_not():
    bucket = ContractBucket(4.0, 0.0)
    assert offer(bucket, 10, 0, 20)[0] == pytest.approx(10.0, abs=0.2)
    assert offer(bucket, 10, 7200, 7210)[0] == pytest.approx(1.4, abs=0.2)  # a tenth of the rate, and the burst


def test_a_contract_of_nothing_guarantees_nothing():
    assert not ContractBucket(0.0, 0.0).take(Allowance(0.0, 0.0), 0.0, 5.0)


def test_a_smaller_burst_takes_hold_at_once():
    bucket = ContractBucket(100.0, 0.0)
    assert bucket.take(REQUESTS, 0.0, 0.0)
    assert bucket.level == 1.0
