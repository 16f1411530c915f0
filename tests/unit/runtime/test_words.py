"""Each kind of decision in words, as golden examples."""

import pytest

from service.domain.command import Dispatch, Enqueue, Grounds, Refuse, Revoke
from service.domain.event import (
    AttemptFailed,
    DrainBegan,
    FailureCause,
    FirstTokenSeen,
    PermitEnded,
    RequestAbandoned,
    RequestArrived,
    Woken,
    WorkerDrainChanged,
    WorkerHealthChanged,
    WorkerJoined,
    WorkerLeft,
    WorkerLoadSeen,
)
from service.domain.load import WorkerLoad
from service.domain.outcome import Outcome
from service.domain.permit import PermitEnding
from service.flow.band import BEST_EFFORT, EXCESS
from service.flow.config import FlowConfig, Reconfigured
from service.runtime.words import describe_band, describe_refusal, explain
from tests.support.flow import build_request

ARRIVED = RequestArrived(build_request("r", max_output_tokens=50))


def grounds(band=0, due_at=2.0, wait_s=None, **more):
    return Grounds(band, 100, 20, due_at, 1.5, 3, 64, wait_s, **more)


def tell(*records):
    return [step.text for step in explain(list(records), "r")]


def test_served_at_once():
    sent = Dispatch("r", "a", 1, grounds(ttft_s=0.25, held=3, limit=8))
    ended = PermitEnded("r", PermitEnding.SERVED, 20, 100, 64)
    assert tell((0.0, ARRIVED, [sent]), (0.3, FirstTokenSeen("r"), []), (0.9, ended, [])) == [
        "arrived: tenant tenant, tier standard, 320 bytes, a stream, at most 50 tokens of answer",
        "judged: guaranteed, of tier rank 0; about 100 tokens of prompt and 20 of answer",
        "promise: first token by +2.000 s; it may be sent to a worker until +1.500 s",
        "sent to worker a: first token was foreseen soonest there, less the harm to those who decode there; "
        "foreseen 0.250 s after dispatch; 3 of its 8 permits were in use; 3 were left waiting",
        "first token",
        "ended: served; 100 tokens of prompt, 64 of them from the prefix cache, 20 tokens of answer",
    ]


def test_queued_then_expired():
    queued = Enqueue("r", 4, grounds(wait_s=0.5))
    expired = Refuse("r", Outcome.EXPIRED, 2.25, grounds(wait_s=1.0))
    assert tell((0.0, ARRIVED, [queued]), (1.75, Woken(), [expired]))[3:] == [
        "queued: 4 wait, itself included; the workers carry 64 together; foreseen wait 0.500 s against "
        "1.500 s of slack",
        "refused (expired): its time in the queue was up before a worker could take it, when its time or a worker's "
        "rest was over; 3 waited, the workers carry 64 together; foreseen wait 1.000 s against 0.250 s too late "
        "already; advice: try again after 2.2 s",
    ]


def test_refused_at_the_door():
    refused = Refuse("r", Outcome.DEADLINE_UNATTAINABLE, 3.0, grounds(wait_s=4.0))
    assert tell((0.0, ARRIVED, [refused]))[-1] == (
        "refused (deadline_unattainable): its promise could not have been kept; 3 waited, the workers carry 64 "
        "together; foreseen wait 4.000 s against 1.500 s of slack; advice: try again after 3.0 s"
    )


def test_refused_by_a_gateway_that_goes_away():
    assert tell((0.0, ARRIVED, [Refuse("r", Outcome.DRAINING, 1.0)]))[1:] == [
        "refused (draining): this gateway was going away and admitted nothing new; advice: try again after 1.0 s"
    ]


def test_without_a_promise_and_without_a_foreseen_wait():
    told = tell((0.0, ARRIVED, [Enqueue("r", 1, grounds(BEST_EFFORT, None))]))
    assert told[2] == (
        "promise: none for its first token (or none that even an idle worker could keep); "
        "it may be sent to a worker until +1.500 s"
    )
    assert told[3].endswith("wait not foreseen (what they carry is still being found), 1.500 s of slack")


def test_failed_retried_and_refused_for_good():
    failed = AttemptFailed("r", FailureCause.UNREACHABLE)
    busy = AttemptFailed("r", FailureCause.BUSY, 2.0)
    assert tell(
        (0.0, failed, [Enqueue("r", 1), Dispatch("r", "b", 2)]), (0.1, busy, [Refuse("r", Outcome.WORKER_BUSY, 2.0)])
    ) == [
        "attempt failed: the worker could not be reached",
        "queued: 1 wait, itself included",
        "sent to worker b (attempt 2)",
        "attempt failed: the worker said it is too busy; it asks for 2.0 s of rest",
        "refused (worker_busy): its worker was too busy, and no other attempt was allowed; advice: "
        "try again after 2.0 s",
    ]


def test_taken_back_for_another():
    other = RequestArrived(build_request("dear"))
    revoked = Revoke("r", Outcome.REVOKED)
    assert tell(
        (0.0, other, [Enqueue("dear", 1), revoked]), (0.1, PermitEnded("r", PermitEnding.DROPPED, None), [])
    ) == [
        "taken back from its worker, when request dear arrived: it was taken back from its worker for somebody who had "
        "been promised more",
        "ended: broken off, by the worker's failure or because it was taken back",
    ]


def test_pinned():
    arrived = RequestArrived(build_request("r", pinned_to="a"))
    told = tell((0.0, arrived, [Dispatch("r", "a", 1, grounds(ttft_s=0.1, held=0, limit=1))]))
    assert told[0].endswith("; only worker a holds its conversation")
    assert "only this one holds its conversation" in told[-1]


def test_the_client_left():
    assert tell((1.0, RequestAbandoned("r"), [])) == ["ended: the client left while it was waiting"]
    assert tell((1.0, PermitEnded("r", PermitEnding.IGNORED), []))[0].startswith("ended: the client left, or")


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (PermitEnded("x", PermitEnding.SERVED), "when request x gave its permit back"),
        (FirstTokenSeen("x"), "when request x had its prompt read"),
        (WorkerLoadSeen("a", WorkerLoad(0.0)), "after figures of worker a"),
        (WorkerHealthChanged("a", True), "when worker a became healthy"),
        (WorkerHealthChanged("a", False), "when worker a became unhealthy"),
        (WorkerDrainChanged("a", True), "when worker a began to drain"),
        (WorkerDrainChanged("a", False), "when worker a took work again"),
        (WorkerJoined("a"), "when worker a joined"),
        (WorkerLeft("a"), "when worker a left"),
        (Reconfigured(FlowConfig()), "when the configuration changed"),
        (Woken(), "when its time or a worker's rest was over"),
    ],
)
def test_what_somebody_elses_event_gave_rise_to(event, words):
    assert tell((0.0, event, [Dispatch("r", "a", 1)])) == [f"sent to worker a, {words}"]


def test_other_events_give_no_cause():
    assert tell((0.0, DrainBegan(), [Dispatch("r", "a", 1)])) == ["sent to worker a"]


def test_bands():
    assert describe_band(2) == "guaranteed, of tier rank 2"
    assert describe_band(EXCESS + 1) == "beyond its contract, of tier rank 1"
    assert describe_band(BEST_EFFORT) == "best effort"


@pytest.mark.parametrize("outcome", Outcome, ids=lambda one: one.label)
def test_every_outcome_has_words(outcome):
    assert "_" not in describe_refusal(outcome)


@pytest.mark.parametrize("cause", FailureCause)
def test_every_failure_has_words(cause):
    assert len(tell((0.0, AttemptFailed("r", cause), []))[0]) > 25
