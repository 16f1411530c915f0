"""Drains follow a worker's place; trouble has a worker looked at."""

from types import SimpleNamespace

import pytest

from service.domain.event import WorkerDrainChanged
from service.domain.outcome import Outcome
from service.domain.units import WorkerId
from service.workers.addresses import WorkerAddress
from service.workers.roster import PoolRoster
from service.workers.suspicion import TROUBLE, Suspicion

A, B = WorkerId("w:1"), WorkerId("w:1~2")
ADDRESS = WorkerAddress(A, "w", 1)


class _Pool:
    """Notes who comes and goes."""

    def __init__(self) -> None:
        self.did: list[tuple[object, ...]] = []

    def add(self, worker_id, address) -> None:
        self.did.append(("add", worker_id, address))

    def remove(self, worker_id) -> None:
        self.did.append(("remove", worker_id))


def test_the_pool_hears_who_comes_and_goes():
    pool = _Pool()
    roster = PoolRoster(pool, lambda event: None)
    roster.add(A, ADDRESS)
    roster.remove(A)
    assert pool.did == [("add", A, ADDRESS), ("remove", A)]


def test_a_drain_is_carried_over_to_the_successor_once():
    events = []
    roster = PoolRoster(_Pool(), events.append)
    roster.set_draining(A, True)
    roster.replaced(A, B)
    roster.replaced(A, WorkerId("w:1~3"))
    assert events == [WorkerDrainChanged(A, True), WorkerDrainChanged(B, True)]


def test_a_drain_outlives_an_absence_from_the_list():
    events = []
    roster = PoolRoster(_Pool(), events.append)
    roster.set_draining(A, True)
    roster.remove(A)
    roster.add(A, ADDRESS)
    roster.welcome(A)
    roster.welcome(B)
    assert events == [WorkerDrainChanged(A, True)] * 2
    roster.set_draining(A, False)
    roster.remove(A)
    roster.welcome(A)
    assert events[2:] == [WorkerDrainChanged(A, False)]


def test_a_drain_that_was_undone_is_not():
    events = []
    roster = PoolRoster(_Pool(), events.append)
    roster.set_draining(A, True)
    roster.set_draining(A, False)
    roster.replaced(A, B)
    assert events == [WorkerDrainChanged(A, True), WorkerDrainChanged(A, False)]


def test_a_worker_gets_work_only_if_neither_operator_nor_platform_wants_it_empty():
    events = []
    roster = PoolRoster(_Pool(), events.append)
    roster.set_draining(A, True)
    roster.set_leaving(A, True)
    roster.set_draining(A, False)  # an operator cannot call back what the platform ends
    roster.set_leaving(A, False)
    assert [event.draining for event in events] == [True, True, True, False]


def test_the_platforms_word_is_for_the_process_not_for_its_place():
    events = []
    roster = PoolRoster(_Pool(), events.append)
    roster.set_leaving(A, True)
    roster.remove(A)
    roster.replaced(A, B)
    roster.set_draining(A, False)
    assert events == [WorkerDrainChanged(A, True), WorkerDrainChanged(A, False)]


@pytest.mark.parametrize("outcome", Outcome)
def test_trouble_has_the_worker_looked_at(outcome):
    suspects = []
    suspicion = Suspicion(suspects.append)
    suspicion.settle(SimpleNamespace(outcome=outcome, worker_id=A))
    suspicion.settle(SimpleNamespace(outcome=outcome, worker_id=None))
    assert suspects == ([A] if outcome in TROUBLE else [])
