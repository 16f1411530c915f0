"""Holds what is known about one worker, as a frozen value that each answer, and each tick, turns into the next.

The central figure is ``starved_s``: seconds in which the worker had work and nothing came of it. Any progress sets it
to zero; idle time leaves it as it is, so that a frozen worker cannot hide behind clients that give up early.

Progress is one of: a byte of an answer reached the gateway, the token counter grew, the KV cache filled further (during
a long chunked prefill vLLM counts no token until the first output, minutes later for a prompt of a million tokens,
while every chunk takes cache blocks), or a one-token request of our own was answered.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from service.domain.load import WorkerLoad


class Answer(Enum):
    """How a call to a worker went."""

    OK = "ok"
    DEAD = "dead"
    """503: from ``/health`` it means that the engine is dead."""
    REFUSED = "refused"
    """Nobody listens there, or the host cannot be reached."""
    TIMEOUT = "timeout"
    BROKEN = "broken"
    """Anything else: a reset, another status, nonsense, or no descriptor left on our side."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that :func:`service.workers.health.judge` looks at.

    ``health`` is the last answer of ``/health``, ``None`` before the first; ``greeted`` tells that it was good once.
    ``misses`` counts failed scrapes since the worker last answered anything. ``scrape_failures`` counts failed scrapes
    since the last good one. ``good_probes`` counts good answers since the last bad one. ``proven_at`` is the last
    moment of progress. ``served_models`` is ``None`` until the list was read once. ``deviations``: what it runs other
    than its profile asks, ``None`` until its page was looked at for that. ``leaving``: the platform is about to end it.
    """

    joined_at: float
    ticked_at: float
    load: WorkerLoad | None = None
    health: Answer | None = None
    greeted: bool = False
    scrape: Answer | None = None
    misses: int = 0
    scrape_failures: int = 0
    good_probes: int = 0
    proven_at: float | None = None
    starved_s: float = 0.0
    in_flight: int = 0
    last_byte_at: float | None = None
    served_models: frozenset[str] | None = None
    deviations: tuple[str, ...] | None = None
    leaving: bool = False

    @property
    def busy(self) -> bool:
        """Whether the worker has work, by our own count or by its last page."""
        load = self.load
        return self.in_flight > 0 or (load is not None and bool(load.running_requests or load.waiting_requests))


def begin(now: float) -> Evidence:
    """What is known of a worker that was only just found."""
    return Evidence(joined_at=now, ticked_at=now)


def observe_tick(
    evidence: Evidence, in_flight: int, last_byte_at: float | None, longest_tick_s: float, now: float
) -> Evidence:
    """Time passed; ``in_flight`` and ``last_byte_at`` are the gateway's own view.

    A gap between ticks counts for at most ``longest_tick_s``: when the gateway itself stood still, that says nothing
    about workers. The whole gap counts if there is work at its end, so starvation is overstated by up to one gap.
    """
    evidence = replace(evidence, in_flight=in_flight)
    if last_byte_at is not None and (evidence.last_byte_at is None or last_byte_at > evidence.last_byte_at):
        evidence = replace(_progressed(evidence, last_byte_at), last_byte_at=last_byte_at)
    since = evidence.ticked_at if evidence.proven_at is None else max(evidence.ticked_at, evidence.proven_at)
    if evidence.busy:
        gap_s = min(max(now - since, 0.0), longest_tick_s)
        evidence = replace(evidence, starved_s=evidence.starved_s + gap_s)
    return replace(evidence, ticked_at=max(now, evidence.ticked_at))


def observe_load(evidence: Evidence, load: WorkerLoad) -> Evidence:
    """A metrics page was read."""
    if evidence.load is not None and _moved(evidence.load, load):
        evidence = _progressed(evidence, load.observed_at)
    return replace(
        evidence,
        load=load,
        scrape=Answer.OK,
        misses=0,
        scrape_failures=0,
        good_probes=evidence.good_probes + 1,
    )


def observe_scrape_failure(evidence: Evidence, answer: Answer) -> Evidence:
    """A metrics page could not be read."""
    return replace(
        evidence,
        scrape=answer,
        misses=evidence.misses + 1,
        scrape_failures=evidence.scrape_failures + 1,
        good_probes=0 if answer is Answer.REFUSED else evidence.good_probes,
    )


def observe_health(evidence: Evidence, answer: Answer) -> Evidence:
    """``/health`` answered, or did not."""
    match answer:
        case Answer.OK:
            scrape = None if evidence.scrape is Answer.REFUSED else evidence.scrape
            good_probes = evidence.good_probes + 1
            return replace(evidence, health=answer, greeted=True, scrape=scrape, misses=0, good_probes=good_probes)
        case Answer.REFUSED | Answer.DEAD:
            return replace(evidence, health=answer, good_probes=0)
        case Answer.TIMEOUT | Answer.BROKEN:  # says less than a 503 did
            return evidence if evidence.health is Answer.DEAD else replace(evidence, health=answer)
        case _:
            assert_never(answer)


def observe_models(evidence: Evidence, models: frozenset[str]) -> Evidence:
    """The list of served models was read."""
    return replace(evidence, served_models=models)


def observe_deviations(evidence: Evidence, deviations: tuple[str, ...]) -> Evidence:
    """Its page was held against the profile."""
    return replace(evidence, deviations=deviations)


def observe_leaving(evidence: Evidence, leaving: bool) -> Evidence:
    """The platform is about to end it, or is not after all."""
    return replace(evidence, leaving=leaving)


def observe_token(evidence: Evidence, now: float) -> Evidence:
    """A one-token request of our own was answered: the engine works, and so does the way to it."""
    return replace(_progressed(evidence, now), misses=0, good_probes=evidence.good_probes + 1)


def observe_ejection(evidence: Evidence) -> Evidence:
    """It was judged unhealthy: good answers count from here."""
    return replace(evidence, good_probes=0)


def _progressed(evidence: Evidence, at: float) -> Evidence:
    return replace(evidence, starved_s=0.0, proven_at=max(at, evidence.proven_at or at))


def _moved(before: WorkerLoad, after: WorkerLoad) -> bool:
    return _grew(before.progress_tokens, after.progress_tokens) or _grew(before.kv_cache_ratio, after.kv_cache_ratio)


def _grew(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after > before
