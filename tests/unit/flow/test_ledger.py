"""Permits are granted once and given back once."""

import pytest

from service.domain.errors import InvariantError
from service.domain.permit import Permit
from service.flow.ledger import PermitLedger
from service.flow.queue import Waiting
from tests.support.flow import build_request


@pytest.fixture
def ledger():
    """A ledger with one worker."""
    ledger = PermitLedger()
    ledger.join("a")
    return ledger


def grant(ledger, name="r", attempt=1):
    return ledger.grant(Waiting(build_request(name), 100, attempt), ledger.worker("a"), 3.0)


def test_a_permit_is_held_until_it_is_given_back(ledger):
    assert grant(ledger, attempt=2) == Permit("r", "a", 3.0, 2)
    assert ledger.worker("a").in_flight == 1
    running, worker = ledger.release("r")
    assert running.permit == Permit("r", "a", 3.0, 2)
    assert worker.in_flight == 0
    assert not ledger.running


def test_granting_twice_is_a_fault(ledger):
    grant(ledger)
    with pytest.raises(InvariantError, match="request r already holds a permit"):
        grant(ledger)


def test_releasing_twice_is_a_fault(ledger):
    grant(ledger)
    ledger.release("r")
    with pytest.raises(InvariantError, match="request r holds no permit"):
        ledger.release("r")


def test_an_unknown_worker_is_a_fault(ledger):
    with pytest.raises(InvariantError, match="worker b is not known"):
        ledger.worker("b")


def test_an_idle_worker_that_leaves_is_forgotten(ledger):
    ledger.leave("a")
    assert ledger.workers == {}


def test_a_busy_worker_that_leaves_is_remembered_until_its_last_request_ends(ledger):
    grant(ledger, "r")
    grant(ledger, "s")
    ledger.leave("a")
    ledger.release("r")
    assert not ledger.worker("a").listed
    ledger.release("s")
    assert ledger.workers == {}


def test_a_worker_that_returns_in_time_keeps_its_requests_and_proves_its_health_anew(ledger):
    grant(ledger)
    ledger.worker("a").healthy = True
    ledger.leave("a")
    ledger.join("a")
    ledger.sort_out()
    assert ledger.worker("a").listed
    assert ledger.worker("a").in_flight == 1
    assert ledger.usable == []


def test_usable_are_the_healthy_that_do_not_drain(ledger):
    for name in "bcd":
        ledger.join(name)
    ledger.worker("b").healthy = ledger.worker("c").healthy = ledger.worker("d").healthy = True
    ledger.worker("c").draining = True
    ledger.sort_out()
    assert [worker.worker_id for worker in ledger.usable] == ["b", "d"]
