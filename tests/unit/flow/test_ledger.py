"""Permits are granted once and given back once."""

import pytest

from service.domain.errors import InvariantError
from service.domain.permit import Permit
from service.flow.band import BEST_EFFORT
from service.flow.ledger import PermitLedger
from tests.support.flow import build_entry


@pytest.fixture
def ledger():
    """A ledger with one worker."""
    ledger = PermitLedger()
    ledger.join("a")
    return ledger


def grant(ledger, name="r", attempt=1, tokens=100, revoked=0, **how):
    entry = build_entry(name, **how)
    entry.attempt, entry.revoked = attempt, revoked
    return ledger.grant(entry, ledger.worker("a"), tokens, 0.1, 3.0)


def test_a_permit_is_held_until_it_is_given_back(ledger):
    assert grant(ledger, attempt=2) == Permit("r", "a", 3.0, 2)
    assert ledger.worker("a").in_flight == 1
    running, worker = ledger.release("r", 4.0)
    assert running.permit == Permit("r", "a", 3.0, 2)
    assert worker.in_flight == 0
    assert not ledger.running


def test_granting_twice_is_a_fault(ledger):
    grant(ledger)
    with pytest.raises(InvariantError, match="request r already holds a permit"):
        grant(ledger)


def test_releasing_twice_is_a_fault(ledger):
    grant(ledger)
    ledger.release("r", 4.0)
    with pytest.raises(InvariantError, match="request r holds no permit"):
        ledger.release("r", 4.0)


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
    ledger.release("r", 4.0)
    assert not ledger.worker("a").listed
    ledger.release("s", 4.0)
    assert ledger.workers == {}


def test_a_worker_that_returns_in_time_keeps_its_requests_and_proves_its_health_anew(ledger):
    grant(ledger)
    ledger.worker("a").healthy = True
    ledger.leave("a")
    ledger.join("a")
    ledger.sort_out(1024)
    assert ledger.worker("a").listed
    assert ledger.worker("a").in_flight == 1
    assert ledger.usable == []


def test_usable_are_the_healthy_that_do_not_drain(ledger):
    for name in "bcd":
        ledger.join(name)
    ledger.worker("b").healthy = ledger.worker("c").healthy = ledger.worker("d").healthy = True
    ledger.worker("c").draining = True
    ledger.sort_out(1024)
    assert [worker.worker_id for worker in ledger.usable] == ["b", "d"]
    assert ledger.permits == 2048
    ledger.sort_out(3)
    assert ledger.permits == 6


def test_prompts_count_until_their_first_token_and_answers_from_then_on(ledger):
    grant(ledger, "r", tokens=100, tpot_s=0.05)
    grant(ledger, "s", tokens=50, tpot_s=0.05)
    worker = ledger.worker("a")
    assert (worker.backlog_tokens, worker.decoding, worker.promises) == (150, 0, {0.05: 2})
    assert (ledger.running["r"].ahead_tokens, ledger.running["s"].ahead_tokens) == (100, 150)
    for _ in range(2):  # told twice, counted once
        assert ledger.start_decoding(ledger.running["r"], 4.0) is worker
    assert (worker.backlog_tokens, worker.decoding, worker.prefilled_tokens) == (50, 1, 100)
    ledger.release("r", 5.0)
    ledger.release("s", 5.0)
    assert (worker.backlog_tokens, worker.decoding, worker.promises) == (0, 0, {})


def test_what_is_beyond_contracts_may_be_taken_back_once(ledger):
    grant(ledger, "promised")
    grant(ledger, "again", band=BEST_EFFORT, revoked=1)
    grant(ledger, "first", band=BEST_EFFORT)
    grant(ledger, "second", band=BEST_EFFORT)
    assert list(ledger.sheddable) == ["first", "second"]
    ledger.mark_revoked(ledger.running["second"])
    assert ledger.running["second"].revoked
    ledger.release("first", 4.0)
    assert not ledger.sheddable


class TestSlack:
    def test_who_was_promised_a_pace_has_a_mark_until_it_begins(self):
        ledger = PermitLedger()
        ledger.join("a")
        worker = ledger.worker("a")
        first = build_entry("r", tpot_s=0.05)
        ledger.grant(first, worker, 1000, 0.1, 0.0)
        assert worker.slack.read_s(5.0) == 4.0
        ledger.start_decoding(ledger.running["r"], 5.0)
        assert worker.slack.seconds == 0.0  # its first answer may be its last token

    def test_a_promise_finds_what_was_sent_before(self):
        ledger = PermitLedger()
        ledger.join("a")
        worker = ledger.worker("a")
        ledger.grant(build_entry("r"), worker, 10_000, 0.1, 0.0)
        assert worker.slack.busy_until == 0.0
        ledger.grant(build_entry("s", tpot_s=0.05), worker, 1000, 0.1, 1.0)
        assert worker.slack.busy_until == pytest.approx(1.33)
        assert worker.strain == pytest.approx(20.0)

    def test_who_was_promised_nothing_takes_of_it_too(self):
        ledger = PermitLedger()
        ledger.join("a")
        worker = ledger.worker("a")
        ledger.grant(build_entry("s", tpot_s=0.05), worker, 1000, 0.1, 0.0)
        ledger.grant(build_entry("r"), worker, 10_000, 0.1, 0.0)
        assert worker.slack.seconds == pytest.approx(-0.3)
