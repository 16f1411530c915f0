"""Cases D12 and D13, each shown to fail with the naive version."""

import time

import pytest

from service.domain.outcome import Outcome
from service.telemetry.recorder import Recorder
from tests.support.telemetry import (
    TIERS,
    HeaderTimer,
    TextLabels,
    build_exposition,
    build_settlement,
    build_stream,
    read_samples,
    scrape,
    value_of,
)

# ---------------------------------------------------------------- D12: measure at the end, first token separately


def _runs():
    """One stream that completes after 5 s, one that breaks after 3 s; headers come at once, content after 2 s."""
    return build_stream(), build_stream(outcome=Outcome.STREAM_BROKEN, last_token_at=103.0)


def _check_d12(samples):
    ended = {"tier": "default", "kind": "chat_completions"}
    assert value_of(samples, "sluice_requests_total", **ended, outcome="completed") == 1
    assert value_of(samples, "sluice_requests_total", **ended, outcome="stream_broken") == 1
    assert value_of(samples, "sluice_ttft_seconds_count", tier="default") == 2
    assert value_of(samples, "sluice_ttft_seconds_sum", tier="default") == pytest.approx(4.0)
    assert value_of(samples, "sluice_e2e_seconds_sum", tier="default") == pytest.approx(5.0)
    assert value_of(samples, "sluice_queue_wait_seconds_sum", tier="default") == pytest.approx(1.0)
    assert value_of(samples, "sluice_stage_seconds_sum", stage="generation") == pytest.approx(3.0 + 1.0)
    assert value_of(samples, "sluice_stage_seconds_sum", stage="prefill") == pytest.approx(2 * 1.4995)


def test_d12_streams_are_measured_at_their_last_byte():
    recorder = Recorder(TIERS)
    for settlement in _runs():
        recorder.settle(settlement)
    _check_d12(scrape(recorder))


def test_d12_fails_with_a_timer_stopped_at_the_headers():
    naive = HeaderTimer()
    for settlement in _runs():
        naive.on_headers(settlement, 100.001, 200)
    with pytest.raises(AssertionError):
        _check_d12(naive.samples)
    assert value_of(naive.samples, "sluice_ttft_seconds_sum", tier="default") < 0.01


# ---------------------------------------------------------------- D13: no client text in labels

HOSTILE = 20_000


def _hostile(number):
    """Path, tier, tenant and request id as a client might wish them."""
    settlement = build_settlement(f"/v1/x-{number}", f"tier-{number}", Outcome.UNKNOWN_MODEL)
    settlement.tenant_id = f"tenant-{number}"
    settlement.request_id = f'"}} {number}\n'
    return settlement


def _check_d13(before, after):
    assert after - before <= 1


def test_d13_client_text_makes_no_series():
    recorder = Recorder(TIERS)
    before = len(scrape(recorder))
    for number in range(HOSTILE):
        recorder.settle(_hostile(number))
    started = time.process_time()
    body, _ = build_exposition(recorder).render(None)
    assert time.process_time() - started < 0.1 * 5  # 0.1 s; five times that under coverage and on a busy machine
    samples = read_samples(body)
    _check_d13(before, len(scrape(recorder)))
    assert value_of(samples, "sluice_requests_total", tier="none", kind="other", outcome="unknown_model") == HOSTILE
    assert b"tenant-" not in body
    assert b"tier-" not in body


def test_d13_fails_with_labels_from_client_text():
    naive = TextLabels()
    for number in range(HOSTILE):
        naive.settle(_hostile(number))
    with pytest.raises(AssertionError):
        _check_d13(0, naive.series)
