"""Health by progress: a table of cases, then what must hold for all."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.load import WorkerLoad
from service.workers.evidence import (
    Answer,
    Evidence,
    begin,
    observe_ejection,
    observe_health,
    observe_load,
    observe_models,
    observe_scrape_failure,
    observe_tick,
    observe_token,
)
from service.workers.health import Health, HealthConfig, Reason, judge, serves, settle, stall_limit_s, wants_token

CONFIG = HealthConfig(required_model="m", stall_after_s=10.0)
NOW = 1000.0
IDLE = WorkerLoad(observed_at=NOW, running_requests=0, waiting_requests=0, kv_cache_ratio=0.0, progress_tokens=5.0)
GOOD = Evidence(
    joined_at=0.0,
    ticked_at=NOW,
    load=IDLE,
    health=Answer.OK,
    greeted=True,
    scrape=Answer.OK,
    good_probes=9,
    served_models=frozenset({"m"}),
)
OLD = replace(IDLE, observed_at=NOW - 60)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, Reason.GOOD),
        ({"scrape": Answer.REFUSED}, Reason.REFUSED),
        ({"health": Answer.REFUSED}, Reason.REFUSED),
        ({"health": Answer.DEAD}, Reason.ENGINE_DEAD),
        ({"health": Answer.DEAD, "in_flight": 3}, Reason.ENGINE_DEAD),
        ({"served_models": frozenset({"n"})}, Reason.WRONG_MODEL),
        ({"served_models": None}, Reason.UNPROVEN),
        ({"load": None}, Reason.UNPROVEN),
        ({"greeted": False}, Reason.UNPROVEN),
        ({"health": Answer.TIMEOUT}, Reason.GOOD),  # a slow page alone condemns nobody
        ({"health": Answer.TIMEOUT, "greeted": False, "proven_at": 1.0}, Reason.GOOD),  # slow page, tokens flow
        ({"in_flight": 4, "starved_s": 9.9}, Reason.GOOD),
        ({"in_flight": 4, "starved_s": 10.0}, Reason.STALLED),
        ({"starved_s": 10.0}, Reason.STALLED),  # its clients left: still nothing was shown to work
        ({"load": replace(IDLE, progress_tokens=None), "in_flight": 4, "starved_s": 10.0}, Reason.GOOD),  # blind
        ({"load": replace(IDLE, progress_tokens=None), "in_flight": 4, "starved_s": 90.0}, Reason.STALLED),
        ({"load": OLD}, Reason.STALE),
        ({"load": OLD, "misses": 3}, Reason.SILENT),
        ({"load": OLD, "misses": 3, "in_flight": 4, "starved_s": 3.0}, Reason.STALE),  # bytes came 3 s ago
        ({"load": OLD, "misses": 3, "in_flight": 4, "starved_s": 10.0}, Reason.SILENT),
        ({"load": None, "proven_at": 1.0}, Reason.STALE),
    ],
)
def test_judgement(change: dict[str, object], reason: Reason) -> None:
    assert judge(replace(GOOD, **change), CONFIG, NOW) is reason


def test_only_three_reasons_are_healthy() -> None:
    assert [reason for reason in Reason if reason.healthy] == [Reason.GOOD, Reason.STALE, Reason.FINISHING]


def test_any_model_will_do_if_none_is_required() -> None:
    assert serves(replace(GOOD, served_models=None), HealthConfig()) is True


# ------------------------------------------------------------------ folding


def busy(load: WorkerLoad = IDLE, **changes: int) -> WorkerLoad:
    return replace(load, **changes)


def test_work_without_progress_adds_up_and_idle_time_does_not() -> None:
    evidence = begin(0.0)
    evidence = observe_tick(evidence, 1, None, 3.0, 1.0)
    evidence = observe_tick(evidence, 0, None, 3.0, 2.0)  # its client gave up
    evidence = observe_tick(evidence, 0, None, 3.0, 3.0)
    assert evidence.starved_s == 1.0
    evidence = observe_tick(evidence, 1, None, 3.0, 4.0)
    assert evidence.starved_s == 2.0


def test_a_gateway_that_stood_still_blames_no_worker() -> None:
    evidence = observe_tick(replace(GOOD, ticked_at=0.0), 1, None, 3.0, 60.0)
    assert evidence.starved_s == 3.0


def test_a_clock_never_runs_backwards_here() -> None:
    evidence = observe_tick(replace(GOOD, ticked_at=10.0), 1, None, 3.0, 9.0)
    assert (evidence.starved_s, evidence.ticked_at) == (0.0, 10.0)


def test_bytes_are_progress_once() -> None:
    evidence = replace(GOOD, starved_s=4.0, ticked_at=10.0)
    evidence = observe_tick(evidence, 1, 10.6, 3.0, 11.0)
    assert evidence.starved_s == pytest.approx(0.4)
    evidence = observe_tick(evidence, 1, 10.6, 3.0, 12.0)  # the same byte again
    assert evidence.starved_s == pytest.approx(1.4)


@pytest.mark.parametrize(
    ("after", "moved"),
    [
        (replace(IDLE, progress_tokens=6.0), True),
        (replace(IDLE, kv_cache_ratio=0.01), True),  # a long prefill takes blocks before it yields a token
        (replace(IDLE), False),
        (replace(IDLE, running_requests=3), False),
        (replace(IDLE, progress_tokens=None, kv_cache_ratio=None), False),  # missing is not zero
    ],
)
def test_what_counts_as_progress_on_a_page(after: WorkerLoad, moved: bool) -> None:
    evidence = observe_load(replace(GOOD, starved_s=4.0), after)
    assert (evidence.starved_s == 0.0) is moved
    assert (evidence.proven_at is not None) is moved


def test_the_first_page_proves_no_progress() -> None:
    assert observe_load(begin(0.0), IDLE).proven_at is None


def test_a_falling_cache_is_no_progress() -> None:
    evidence = observe_load(replace(GOOD, load=replace(IDLE, kv_cache_ratio=0.5), starved_s=4.0), IDLE)
    assert evidence.starved_s == 4.0


def test_misses_end_with_any_answer_and_failures_only_with_a_page() -> None:
    evidence = observe_scrape_failure(observe_scrape_failure(GOOD, Answer.TIMEOUT), Answer.TIMEOUT)
    assert (evidence.misses, evidence.scrape_failures) == (2, 2)
    evidence = observe_health(evidence, Answer.OK)
    assert (evidence.misses, evidence.scrape_failures) == (0, 2)
    assert observe_load(evidence, IDLE).scrape_failures == 0


def test_a_refusal_ends_the_row_of_good_answers() -> None:
    assert observe_scrape_failure(GOOD, Answer.REFUSED).good_probes == 0
    assert observe_scrape_failure(GOOD, Answer.TIMEOUT).good_probes == GOOD.good_probes
    assert observe_health(GOOD, Answer.DEAD).good_probes == 0
    assert observe_ejection(GOOD).good_probes == 0


def test_silence_says_less_than_503() -> None:
    dead = observe_health(GOOD, Answer.DEAD)
    assert observe_health(dead, Answer.TIMEOUT).health is Answer.DEAD
    assert observe_health(dead, Answer.OK).health is Answer.OK
    assert observe_health(GOOD, Answer.TIMEOUT).health is Answer.TIMEOUT


def test_a_good_answer_lifts_a_refusal() -> None:
    refused = observe_scrape_failure(GOOD, Answer.REFUSED)
    assert observe_health(refused, Answer.OK).scrape is None
    assert observe_health(observe_scrape_failure(GOOD, Answer.TIMEOUT), Answer.OK).scrape is Answer.TIMEOUT


def test_a_token_of_our_own_is_progress() -> None:
    evidence = observe_token(replace(GOOD, starved_s=50.0, misses=4), NOW)
    assert (evidence.starved_s, evidence.misses, evidence.good_probes) == (0.0, 0, GOOD.good_probes + 1)
    assert observe_models(GOOD, frozenset({"x"})).served_models == {"x"}


# ------------------------------------------------------------------ judgements in a row


def test_a_fresh_worker_is_used_after_its_first_good_answers() -> None:
    fresh = replace(GOOD, good_probes=1)
    health = settle(None, fresh, CONFIG, NOW)
    assert (health.reason, health.since, health.ever_healthy) == (Reason.GOOD, NOW, True)


def test_recovery_needs_two_good_answers_and_no_misses() -> None:
    ejected = Health(Reason.REFUSED, NOW - 5, ever_healthy=True)
    assert settle(ejected, replace(GOOD, good_probes=1), CONFIG, NOW).reason is Reason.RECOVERING
    assert settle(ejected, replace(GOOD, good_probes=2, misses=1), CONFIG, NOW).reason is Reason.RECOVERING
    health = settle(ejected, replace(GOOD, good_probes=2), CONFIG, NOW)
    assert (health.reason, health.since) == (Reason.GOOD, NOW)


def test_since_is_the_moment_of_the_last_change_of_use() -> None:
    health = Health(Reason.REFUSED, 7.0, ever_healthy=True)
    health = settle(health, replace(GOOD, health=Answer.DEAD), CONFIG, NOW)
    assert (health.reason, health.since, health.ever_healthy) == (Reason.ENGINE_DEAD, 7.0, True)


def test_a_frozen_worker_does_not_come_back_by_looking_idle() -> None:
    """After the ejection nothing is in flight and its gauges show nothing: only progress may bring it back."""
    frozen = replace(GOOD, starved_s=10.0, in_flight=0)
    ejected = settle(Health(Reason.GOOD, 0.0, ever_healthy=True), frozen, CONFIG, NOW)
    assert ejected.reason is Reason.STALLED
    for _ in range(20):
        frozen = observe_health(observe_load(frozen, IDLE), Answer.OK)
        assert settle(ejected, frozen, CONFIG, NOW).reason is Reason.STALLED
    assert settle(ejected, observe_token(frozen, NOW), CONFIG, NOW).healthy


@pytest.mark.parametrize(
    ("change", "healthy", "wanted"),
    [
        ({}, True, False),
        ({"starved_s": 4.9}, True, False),
        ({"starved_s": 5.0}, True, True),
        ({"starved_s": 50.0, "scrape": Answer.REFUSED}, False, False),
        ({"starved_s": 50.0, "health": Answer.DEAD}, False, False),
        ({"load": None, "scrape": Answer.BROKEN, "scrape_failures": 1}, False, True),  # D29: its page cannot be read
        ({"load": None, "scrape": Answer.BROKEN, "scrape_failures": 1, "proven_at": 1.0}, False, False),
        ({"load": None, "scrape": Answer.BROKEN, "scrape_failures": 1, "health": None}, False, False),
        ({"load": None, "scrape": None}, False, False),
    ],
)
def test_when_a_token_is_asked_for(change: dict[str, object], healthy: bool, wanted: bool) -> None:
    health = Health(Reason.GOOD if healthy else Reason.UNPROVEN, 0.0)
    assert wants_token(replace(GOOD, **change), health, CONFIG, NOW) is wanted


# ------------------------------------------------------------------ what must hold for all

moments = st.floats(0.0, NOW)
maybe_count = st.none() | st.integers(0, 5)
loads = st.builds(
    WorkerLoad,
    observed_at=moments,
    running_requests=maybe_count,
    waiting_requests=maybe_count,
    kv_cache_ratio=st.none() | st.floats(0.0, 1.0),
    progress_tokens=st.none() | st.floats(0.0, 1e9),
)
evidences = st.builds(
    Evidence,
    joined_at=moments,
    ticked_at=moments,
    load=st.none() | loads,
    health=st.none() | st.sampled_from(Answer),
    scrape=st.none() | st.sampled_from(Answer),
    greeted=st.booleans(),
    misses=st.integers(0, 6),
    scrape_failures=st.integers(0, 6),
    good_probes=st.integers(0, 4),
    proven_at=st.none() | moments,
    starved_s=st.floats(0.0, 200.0),
    in_flight=st.integers(0, 3),
    last_byte_at=st.none() | moments,
    served_models=st.none() | st.sampled_from([frozenset({"m"}), frozenset({"n"})]),
)
healths = st.builds(Health, st.sampled_from(Reason), moments, st.booleans())


@given(evidences, healths)
def test_progress_never_makes_it_worse(evidence: Evidence, before: Health) -> None:
    plain = settle(before, evidence, CONFIG, NOW)
    assert settle(before, observe_token(evidence, NOW), CONFIG, NOW).healthy >= plain.healthy
    with_byte = observe_tick(evidence, evidence.in_flight, NOW, 3.0, NOW)
    without = observe_tick(evidence, evidence.in_flight, None, 3.0, NOW)
    assert settle(before, with_byte, CONFIG, NOW).healthy >= settle(before, without, CONFIG, NOW).healthy


@given(evidences, loads)
def test_a_page_with_more_tokens_is_never_worse_than_the_same_with_none(evidence: Evidence, load: WorkerLoad) -> None:
    still = observe_load(evidence, load)
    base = evidence.load.progress_tokens if evidence.load is not None else None
    if load.progress_tokens is None or base is None:
        return
    moved = observe_load(evidence, replace(load, progress_tokens=base + 1.0))
    still = observe_load(evidence, replace(load, progress_tokens=base))
    assert judge(moved, CONFIG, NOW).healthy >= judge(still, CONFIG, NOW).healthy


@given(evidences)
def test_missing_data_never_makes_a_newcomer_healthy(evidence: Evidence) -> None:
    for missing in (
        replace(evidence, served_models=None),
        replace(evidence, load=None, proven_at=None),
        replace(evidence, greeted=False, proven_at=None),
    ):
        assert not settle(None, missing, CONFIG, NOW).healthy


@given(evidences, healths)
def test_starving_longer_never_makes_it_better(evidence: Evidence, before: Health) -> None:
    worse = replace(evidence, starved_s=evidence.starved_s + 5.0)
    assert settle(before, worse, CONFIG, NOW).healthy <= settle(before, evidence, CONFIG, NOW).healthy


@given(evidences, healths)
def test_refused_and_dead_are_never_used(evidence: Evidence, before: Health) -> None:
    assert not settle(before, observe_scrape_failure(evidence, Answer.REFUSED), CONFIG, NOW).healthy
    assert not settle(before, observe_health(evidence, Answer.DEAD), CONFIG, NOW).healthy


@given(evidences)
def test_blindness_only_lengthens_the_wait(evidence: Evidence) -> None:
    assert stall_limit_s(evidence, CONFIG, NOW) in (CONFIG.stall_after_s, CONFIG.blind_stall_after_s)


def test_answers_are_a_closed_set() -> None:

    for answer in Answer:
        observe_health(GOOD, answer)
