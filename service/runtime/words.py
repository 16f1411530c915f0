"""Says in plain words why the core decided as it did about one request."""

from dataclasses import dataclass

from service.domain.command import Command, Dispatch, Enqueue, Grounds, Refuse, Revoke
from service.domain.event import (
    AttemptFailed,
    Event,
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
from service.domain.outcome import Outcome
from service.domain.permit import PermitEnding
from service.domain.request import Request
from service.domain.units import RequestId
from service.flow.band import BEST_EFFORT, EXCESS, is_guaranteed
from service.flow.config import Reconfigured
from service.runtime.journal import Record


@dataclass(frozen=True, slots=True)
class Step:
    """What happened at one moment, in words."""

    at: float
    text: str


_REFUSALS = {
    Outcome.QUEUE_FULL: "the queue was full",
    Outcome.NO_WORKERS: "there was no worker that could take work",
    Outcome.DRAINING: "this gateway was going away and admitted nothing new",
    Outcome.DEADLINE_UNATTAINABLE: "its promise could not have been kept",
    Outcome.UNKNOWN_RESPONSE: "the only worker that holds its conversation is gone",
    Outcome.SHED: "it is not guaranteed, and was given up to keep the promises that are",
    Outcome.EXPIRED: "its time in the queue was up before a worker could take it",
    Outcome.WORKER_UNREACHABLE: "its worker could not be reached, and no other attempt was allowed",
    Outcome.WORKER_BUSY: "its worker was too busy, and no other attempt was allowed",
    Outcome.WORKER_FAILED: "its worker failed",
    Outcome.FIRST_TOKEN_TIMEOUT: "its worker yielded nothing in time",
    Outcome.STREAM_BROKEN: "the connection to its worker broke, and no other attempt was allowed",
    Outcome.REVOKED: "it was taken back from its worker for somebody who had been promised more",
}

_FAILURES = {
    FailureCause.UNREACHABLE: "the worker could not be reached",
    FailureCause.BROKEN: "the connection broke before anything came back",
    FailureCause.FAULTY: "the worker answered with an error of its own",
    FailureCause.BUSY: "the worker said it is too busy",
    FailureCause.TIMEOUT: "the worker yielded nothing in time",
    FailureCause.REVOKED: "it was taken back",
}


def describe_band(band: int) -> str:
    """A band of the queue in words."""
    if is_guaranteed(band):
        return f"guaranteed, of tier rank {band}"
    return "best effort" if band >= BEST_EFFORT else f"beyond its contract, of tier rank {band - EXCESS}"


def describe_refusal(outcome: Outcome) -> str:
    """Why a request was refused."""
    return _REFUSALS.get(outcome, outcome.label.replace("_", " "))


def explain(records: list[Record], request_id: RequestId) -> list[Step]:
    """What happened to the request, in order; ``records`` are those that name it."""
    steps: list[Step] = []
    request: Request | None = None
    for at, event, commands in records:
        if isinstance(event, RequestArrived) and event.request.request_id == request_id:
            request = event.request
            steps += [Step(at, text) for text in _tell_arrival(request, commands[0] if commands else None)]
        elif getattr(event, "request_id", None) == request_id:
            steps.append(Step(at, _tell_event(event)))
        because = "" if _is_own(event, request_id) else _tell_cause(event)
        for command in commands:
            if command.request_id == request_id:
                steps.append(Step(at, _tell_command(command, request, at, because)))
    return steps


def _is_own(event: Event | Reconfigured, request_id: RequestId) -> bool:
    if isinstance(event, RequestArrived):
        return event.request.request_id == request_id
    return getattr(event, "request_id", None) == request_id


def _tell_arrival(request: Request, first: Command | None) -> list[str]:
    kind = "a stream" if request.stream else "one whole answer"
    bound = "" if request.max_output_tokens is None else f", at most {request.max_output_tokens} tokens of answer"
    pinned = "" if request.pinned_to is None else f"; only worker {request.pinned_to} holds its conversation"
    lines = [
        f"arrived: tenant {request.tenant_id}, tier {request.tier}, {request.prompt_bytes} bytes, {kind}{bound}{pinned}"
    ]
    grounds = getattr(first, "grounds", None)
    if isinstance(grounds, Grounds):
        lines.append(
            f"judged: {describe_band(grounds.band)}; about {grounds.prompt_tokens} tokens of prompt and "
            f"{grounds.output_tokens} of answer"
        )
        lines.append(_tell_promise(grounds, request))
    return lines


def _tell_promise(grounds: Grounds, request: Request) -> str:
    latest = f"it may be sent to a worker until +{grounds.give_up_at - request.arrived_at:.3f} s"
    if grounds.due_at is None:
        return f"promise: none for its first token (or none that even an idle worker could keep); {latest}"
    return f"promise: first token by +{grounds.due_at - request.arrived_at:.3f} s; {latest}"


def _tell_event(event: Event | Reconfigured) -> str:
    match event:
        case FirstTokenSeen():
            return "first token"
        case AttemptFailed():
            wish = "" if event.retry_after_s is None else f"; it asks for {event.retry_after_s:.1f} s of rest"
            return f"attempt failed: {_FAILURES[event.cause]}{wish}"
        case PermitEnded():
            return _tell_ending(event)
        case RequestAbandoned():
            return "ended: the client left while it was waiting"
        case _:
            return type(event).__name__


def _tell_ending(event: PermitEnded) -> str:
    known = (
        (event.prompt_tokens, "tokens of prompt"),
        (event.cached_tokens, "of them from the prefix cache"),
        (event.output_tokens, "tokens of answer"),
    )
    tokens = ", ".join(f"{number} {what}" for number, what in known if number is not None)
    match event.ending:
        case PermitEnding.SERVED:
            how = "ended: served"
        case PermitEnding.IGNORED:
            how = "ended: the client left, or the worker refused what it sent; says nothing about the worker"
        case _:
            how = "ended: broken off, by the worker's failure or because it was taken back"
    return f"{how}; {tokens}" if tokens else how


def _tell_command(command: Command, request: Request | None, at: float, because: str) -> str:
    grounds: Grounds | None = getattr(command, "grounds", None)
    match command:
        case Dispatch():
            return _tell_dispatch(command, request, because)
        case Enqueue():
            place = f"queued: {command.queued_requests} wait, itself included"
            return place if grounds is None else f"{place}; {_tell_capacity(grounds, at)}"
        case Refuse():
            why = f"refused ({command.outcome.label}): {describe_refusal(command.outcome)}{because}"
            if grounds is not None:
                why += f"; {grounds.queued_requests} waited, {_tell_capacity(grounds, at)}"
            if command.retry_after_s is not None:
                why += f"; advice: try again after {command.retry_after_s:.1f} s"
            return why
        case Revoke():
            return f"taken back from its worker{because}: {describe_refusal(command.outcome)}"


def _tell_capacity(grounds: Grounds, at: float) -> str:
    permits = f"the workers carry {grounds.permits} together"
    slack_s = grounds.give_up_at - at
    room = f"{slack_s:.3f} s of slack" if slack_s >= 0.0 else f"{-slack_s:.3f} s too late already"
    if grounds.wait_s is None:
        return f"{permits}; wait not foreseen (what they carry is still being found), {room}"
    return f"{permits}; foreseen wait {grounds.wait_s:.3f} s against {room}"


def _tell_dispatch(command: Dispatch, request: Request | None, because: str) -> str:
    again = "" if command.attempt == 1 else f" (attempt {command.attempt})"
    text = f"sent to worker {command.worker_id}{again}{because}"
    grounds = command.grounds
    if grounds is None or grounds.ttft_s is None:
        return text
    reason = "first token was foreseen soonest there, less the harm to those who decode there"
    if request is not None and request.pinned_to is not None:
        reason = "only this one holds its conversation"
    text += f": {reason}; foreseen {grounds.ttft_s:.3f} s after dispatch"
    if grounds.held is not None and grounds.limit is not None:
        text += f"; {grounds.held} of its {grounds.limit} permits were in use"
    if grounds.cached_tokens:
        text += f"; about {grounds.cached_tokens} tokens of the prompt should be in its cache"
    return f"{text}; {grounds.queued_requests} were left waiting"


def _tell_cause(event: Event | Reconfigured) -> str:
    match event:
        case RequestArrived():
            return f", when request {event.request.request_id} arrived"
        case PermitEnded() | AttemptFailed():
            return f", when request {event.request_id} gave its permit back"
        case FirstTokenSeen():
            return f", when request {event.request_id} had its prompt read"
        case WorkerLoadSeen():
            return f", after figures of worker {event.worker_id}"
        case WorkerHealthChanged():
            return f", when worker {event.worker_id} became {'healthy' if event.healthy else 'unhealthy'}"
        case WorkerDrainChanged():
            return f", when worker {event.worker_id} {'began to drain' if event.draining else 'took work again'}"
        case WorkerJoined():
            return f", when worker {event.worker_id} joined"
        case WorkerLeft():
            return f", when worker {event.worker_id} left"
        case Reconfigured():
            return ", when the configuration changed"
        case Woken():
            return ", when its time or a worker's rest was over"
        case _:
            return ""
