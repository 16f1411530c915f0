"""What is sold, held against what there is with one worker lost."""

import pytest

from service.domain.contract import Allowance, Contract, Measure
from service.domain.tenant import Tenant
from service.domain.tier import Tier
from service.flow.proof import Capacity, prove
from service.flow.stats import FlowStats, WorkerStats

TIERS = {"gold": Tier("gold", 0), "silver": Tier("silver", 1), "batch": Tier("batch", 2, best_effort=True)}
CAPACITY = Capacity(workers=5, tokens_per_minute=60_000.0, requests_per_minute=100.0, concurrency=50.0)


def tenant(name, tier="gold", suspended=False, **contract):
    return Tenant(name, tier, suspended, contract=Contract(**contract))


def work(rate):
    return Allowance(rate, 10.0)


@pytest.mark.parametrize(
    ("contract", "sold"),
    [
        ({"work": work(1.5)}, 1.5),
        ({"tokens_per_minute": 30_000}, 0.5),
        ({"requests_per_minute": 200}, 2.0),
        ({"concurrency": 25}, 0.5),
        ({"work": work(1.5), "tokens_per_minute": 30_000, "concurrency": 500}, 0.5),
        ({"work": Allowance(9.0, 9.0, Measure.REQUESTS), "tokens_per_minute": 30_000}, 0.5),
    ],
)
def test_a_tenant_may_claim_the_least_of_its_limits(contract, sold):
    assert prove([tenant("a", **contract)], TIERS, CAPACITY).sold == pytest.approx(sold)


def test_what_is_sold_is_kept_with_one_worker_lost():
    proof = prove([tenant("a", work=work(2.0)), tenant("b", "silver", work=work(1.0))], TIERS, CAPACITY)
    assert (proof.backed, proof.sold, proof.oversold, proof.kept) == (3.0, 3.0, 0.0, True)
    assert [(one.tier, one.tenants, one.missing) for one in proof.tiers] == [("gold", 1, 0.0), ("silver", 1, 0.0)]


def test_what_is_oversold_is_a_number_and_the_cheaper_tiers():
    proof = prove([tenant("b", "silver", work=work(2.5)), tenant("a", work=work(2.0))], TIERS, CAPACITY)
    assert proof.oversold == pytest.approx(1.5)
    assert not proof.kept
    assert [one.missing for one in proof.tiers] == [0.0, pytest.approx(1.5)]


def test_a_single_worker_backs_nothing():
    proof = prove([tenant("a", work=work(0.1))], TIERS, Capacity(workers=1))
    assert (proof.backed, proof.kept) == (0.0, False)


def test_promises_without_bounds_cannot_be_proven():
    free = Tenant("free", "gold")
    proof = prove([free, tenant("a", tokens_per_month=5), tenant("b", work=work(0.1))], TIERS, CAPACITY)
    assert proof.unbounded == ("free", "a")
    assert not proof.kept


def test_who_is_promised_nothing_is_sold_nothing():
    them = [tenant("a", "batch"), tenant("b", "nowhere"), tenant("c", suspended=True, work=work(9.0))]
    proof = prove(them, TIERS, CAPACITY)
    assert (proof.sold, proof.unbounded, proof.kept) == (0, (), True)


def test_what_a_worker_carries_is_measured_once_it_was_found():
    workers = tuple(WorkerStats(name, 0, True, False, True, False) for name in "ab")
    assert FlowStats(0, 0, 0, False, 0.02, workers, 32, True).tokens_per_worker_minute == pytest.approx(48_000)
    assert FlowStats(0, 0, 0, False, 0.02, workers, 32).tokens_per_worker_minute is None
    assert FlowStats(0, 0, 0, False, None, workers, 32, True).tokens_per_worker_minute is None
    assert FlowStats(0, 0, 0, False, 0.02, (), 32, True).tokens_per_worker_minute is None
