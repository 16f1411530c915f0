"""Contracts and bands."""

import pytest

from service.domain.contract import Allowance, Measure
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


def test_a_contract_of_nothing_guarantees_nothing():
    assert not ContractBucket(0.0, 0.0).take(Allowance(0.0, 0.0), 0.0, 5.0)


def test_a_smaller_burst_takes_hold_at_once():
    bucket = ContractBucket(100.0, 0.0)
    assert bucket.take(REQUESTS, 0.0, 0.0)
    assert bucket.level == 1.0
