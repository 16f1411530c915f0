"""The fold: what each ending adds, and what it leaves alone."""

import random

import pytest

from service.domain.command import Dispatch, Enqueue, Refuse, Revoke
from service.domain.errors import InvariantError
from service.domain.event import (
    AttemptFailed,
    FailureCause,
    FirstTokenSeen,
    PermitEnded,
    RequestArrived,
    Woken,
    WorkerHealthChanged,
    WorkerJoined,
)
from service.domain.outcome import Outcome
from service.domain.permit import PermitEnding
from service.domain.request import Request
from service.domain.tier import Tier
from service.flow.config import FlowConfig
from service.flow.controller import FlowController
from service.telemetry.document import count_request_series
from service.telemetry.gauges import Snapshot
from service.telemetry.recorder import Recorder
from tests.support.telemetry import TIERS, build_settlement, build_stream, scrape, value_of


def _settled(*settlements, **options):
    recorder = Recorder(TIERS, **options)
    for settlement in settlements:
        recorder.settle(settlement)
    return scrape(recorder)


def _changed(*settlements):
    """Series that are not as they are at the start, buckets left out."""
    start = scrape(Recorder(TIERS))
    after = _settled(*settlements)
    return {key[0] for key, value in after.items() if start.get(key) != value and not key[0].endswith("_bucket")}


TIMES = ("ttft", "queue_wait", "tpot", "e2e")


def test_stream_fills_everything():
    samples = _settled(build_stream())
    for name, length_s in zip(TIMES, (2.0, 0.5, 0.03, 5.0), strict=True):
        assert value_of(samples, f"sluice_{name}_seconds_sum", tier="default") == pytest.approx(length_s)
        assert value_of(samples, f"sluice_{name}_seconds_count", tier="default") == 1
        assert value_of(samples, f"sluice_{name}_seconds_count", tier="priority") == 0
    for name, tokens in (("prompt", 1000), ("cached", 400), ("output", 101), ("output_tokens_estimated", 0)):
        name = name if name.endswith("estimated") else name + "_tokens"
        assert value_of(samples, f"sluice_{name}_total", tier="default") == tokens
    assert value_of(samples, "sluice_stage_seconds_sum", stage="edge") == pytest.approx(0.0005)


def test_whole_answer_has_an_end_and_no_first_token():
    samples = _settled(build_stream(stream=False, first_token_at=105.0))
    counts = [value_of(samples, f"sluice_{name}_seconds_count", tier="default") for name in TIMES]
    assert counts == [0, 1, 0, 1]


def test_refusal_is_counted_and_not_timed():
    assert _changed(build_settlement(outcome=Outcome.MALFORMED)) == {"sluice_requests_total"}
    refused = build_settlement(outcome=Outcome.QUEUE_FULL, admitted_at=100.1)
    assert _changed(refused) == {"sluice_requests_total", "sluice_stage_seconds_count", "sluice_stage_seconds_sum"}


def test_unauthenticated_has_tier_none():
    samples = _settled(build_settlement(tier=None, outcome=Outcome.UNAUTHENTICATED))
    labels = {"tier": "none", "kind": "chat_completions", "outcome": "unauthenticated"}
    assert value_of(samples, "sluice_requests_total", **labels) == 1


def test_unknown_tier_makes_no_series():
    start, after = scrape(Recorder(TIERS)), _settled(build_stream(tier="gold"))
    assert set(after) - set(start) == {
        ("sluice_requests_total", (("kind", "chat_completions"), ("outcome", "completed"), ("tier", "none")))
    }


def test_unknown_kinds_share_one_lane():
    samples = _settled(build_stream(kind="a"), build_stream(kind="b"))
    assert value_of(samples, "sluice_requests_total", tier="default", kind="other", outcome="completed") == 2
    assert value_of(samples, "sluice_e2e_seconds_count", tier="default") == 0


def test_ending_that_was_not_expected_is_still_counted():
    expired = build_settlement("responses_stored", outcome=Outcome.EXPIRED)
    samples = _settled(expired, expired)
    assert value_of(samples, "sluice_requests_total", tier="default", kind="responses_stored", outcome="expired") == 2


def test_stored_answer_was_already_measured():
    assert _changed(build_stream(kind="responses_stored")) == {"sluice_requests_total"}


def test_embeddings_wait_and_have_tokens_but_no_first_token():
    samples = _settled(build_stream(kind="embeddings", stream=False))
    counts = [value_of(samples, f"sluice_{name}_seconds_count", tier="default") for name in TIMES]
    assert counts == [0, 1, 0, 0]
    assert value_of(samples, "sluice_prompt_tokens_total", tier="default") == 1000


def test_cut_stream_counts_its_events_apart_and_has_no_tpot():
    samples = _settled(build_stream(outcome=Outcome.CLIENT_GONE, output_tokens=40, output_estimated=True))
    assert value_of(samples, "sluice_output_tokens_estimated_total", tier="default") == 40
    assert value_of(samples, "sluice_output_tokens_total", tier="default") == 0
    counts = [value_of(samples, f"sluice_{name}_seconds_count", tier="default") for name in TIMES]
    assert counts == [1, 1, 0, 0]


@pytest.mark.parametrize(
    "change", [{"output_tokens": None}, {"output_tokens": 1}, {"output_estimated": True}, {"last_token_at": None}]
)
def test_tpot_needs_two_tokens_by_usage_and_an_end(change):
    samples = _settled(build_stream(**change))
    assert value_of(samples, "sluice_tpot_seconds_count", tier="default") == 0
    assert value_of(samples, "sluice_ttft_seconds_count", tier="default") == 1


def test_stream_without_a_token_has_no_ttft():
    samples = _settled(build_stream(first_token_at=None, last_token_at=None, outcome=Outcome.FIRST_TOKEN_TIMEOUT))
    counts = [value_of(samples, f"sluice_{name}_seconds_count", tier="default") for name in TIMES]
    assert counts == [0, 1, 0, 0]


def test_worker_with_negative_usage_is_not_believed():
    changed = _changed(build_stream(prompt_tokens=-1, cached_tokens=-1, output_tokens=-1))
    assert not [name for name in changed if "tokens" in name]


def test_unknown_usage_adds_nothing():
    changed = _changed(build_stream(prompt_tokens=None, cached_tokens=None, output_tokens=None))
    assert not [name for name in changed if "tokens" in name]


def test_no_outcome_is_a_fault_of_ours():
    with pytest.raises(InvariantError, match="without an outcome"):
        Recorder(TIERS).settle(build_settlement(outcome=None))


def test_thresholds_of_tiers_are_edges_for_all_tiers():
    samples = scrape(Recorder(TIERS, {"sluice_e2e_seconds": [42.0]}))
    for name, edge in (("ttft", "1.1"), ("tpot", "0.022"), ("queue_wait", "7.0"), ("e2e", "42.0")):
        for tier in TIERS:
            assert value_of(samples, f"sluice_{name}_seconds_bucket", tier=tier.name, le=edge) == 0


def test_a_length_on_the_threshold_is_within_it():
    samples = _settled(build_stream(arrived_at=0.0, first_token_at=1.1, last_token_at=3.0))
    assert value_of(samples, "sluice_ttft_seconds_bucket", tier="default", le="1.0") == 0
    assert value_of(samples, "sluice_ttft_seconds_bucket", tier="default", le="1.1") == 1


@pytest.mark.parametrize("names", [("none",), ("gold", "gold")])
def test_tier_names_must_differ(names):
    with pytest.raises(ValueError, match="different names"):
        Recorder([Tier(name, 0) for name in names])


def test_edges_for_a_metric_that_is_not_there():
    with pytest.raises(ValueError, match="sluice_nonsense"):
        Recorder(TIERS, {"sluice_nonsense": [1.0]})


def test_orders_and_failures_are_counted():
    recorder = Recorder(TIERS)
    recorder.observe(1.0, Woken(), [Dispatch("a", "w1", 1), Dispatch("b", "w1", 1)])
    recorder.observe(2.0, FirstTokenSeen("a"), [])
    recorder.observe(3.0, AttemptFailed("b", FailureCause.BUSY), [Enqueue("b", 1), Dispatch("b", "w2", 2)])
    recorder.observe(4.0, Woken(), [Revoke("a", Outcome.REVOKED), Refuse("c", Outcome.EXPIRED)])
    samples = scrape(recorder)
    assert value_of(samples, "sluice_dispatches_total") == 3
    assert value_of(samples, "sluice_retries_total") == 1
    assert value_of(samples, "sluice_revocations_total") == 1
    assert value_of(samples, "sluice_attempt_failures_total", cause="busy") == 1
    assert value_of(samples, "sluice_attempt_failures_total", cause="timeout") == 0


def test_number_of_series_is_what_the_document_says():
    samples = scrape(Recorder(TIERS))
    requests = [key for key in samples if key[0] == "sluice_requests_total"]
    assert len(requests) == count_request_series(len(TIERS)) == 843
    assert len(samples) < 1300
    assert {value for key, value in samples.items() if key[0] != "sluice_build_info"} == {0.0}


def test_series_grow_with_tiers_only():
    grown = len(scrape(Recorder((*TIERS, Tier("gold", 3))))) - len(scrape(Recorder(TIERS)))
    assert grown < 360


def test_a_real_core_in_virtual_time_gives_the_figures():
    recorder = Recorder(TIERS)
    core = FlowController(FlowConfig(requests_per_worker=1), random.Random(7))

    def step(now, event):
        recorder.observe(now, event, core.handle(event, now))

    for worker in ("w1", "w2"):
        step(0.0, WorkerJoined(worker))
        step(0.0, WorkerHealthChanged(worker, True))
    for number in range(3):
        request = Request(f"r{number}", "acme", "default", 1, 320, None, True, 1.0, 31.0)
        step(1.0, RequestArrived(request))
    samples = scrape(recorder, snapshot=Snapshot(core.stats(1.0)))
    assert value_of(samples, "sluice_dispatches_total") == 2
    assert value_of(samples, "sluice_queued_requests") == 1
    assert value_of(samples, "sluice_permits_held") == 2
    assert [value_of(samples, "sluice_in_flight_requests", worker=worker) for worker in ("w1", "w2")] == [1, 1]
    step(2.0, AttemptFailed("r0", FailureCause.UNREACHABLE))  # goes before r2: it has waited longer
    assert value_of(scrape(recorder, snapshot=Snapshot(core.stats(2.5))), "sluice_workers", state="resting") == 1
    step(3.0, PermitEnded("r1", PermitEnding.SERVED, 10))
    step(4.0, PermitEnded("r0", PermitEnding.SERVED, 10))
    samples = scrape(recorder, snapshot=Snapshot(core.stats(4.0)))
    assert value_of(samples, "sluice_attempt_failures_total", cause="unreachable") == 1
    assert value_of(samples, "sluice_retries_total") == 1
    assert value_of(samples, "sluice_dispatches_total") == 4
    assert value_of(samples, "sluice_queued_requests") == 0
