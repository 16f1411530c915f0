"""What a scrape says: both formats, states read at that moment, and nothing that nobody knows."""

import shutil
import subprocess

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from service.domain.condition import Condition
from service.flow.quota import Passage
from service.flow.stats import FlowStats, WorkerStats
from service.telemetry.exposition import OPENMETRICS, TEXT, Exposition, prefers_openmetrics
from service.telemetry.gauges import QuotaFigures, Snapshot
from service.telemetry.lag import LoopLag
from service.telemetry.metrics import METRICS, PROCESS_METRICS
from service.telemetry.recorder import Recorder
from tests.support.telemetry import NOTHING, TIERS, build_exposition, build_stream, read_samples, scrape, value_of

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
FULL = Snapshot(
    FlowStats(
        3,
        900,
        7,
        True,
        1.5,
        (
            WorkerStats("w-ready", 4, True, False, True, False),
            WorkerStats("w-resting", 1, True, False, True, True),
            WorkerStats("w-draining", 1, True, True, True, True),
            WorkerStats("w-sick", 0, False, True, True, False),
            WorkerStats("w-leaving", 1, False, False, False, False),
        ),
    ),
    {"w-ready": 0.25, "w-sick": None, "w-gone": 9.0},
    4096,
    12,
)


def _busy():
    recorder = Recorder(TIERS)
    recorder.settle(build_stream())
    lag = LoopLag()
    lag.observe(1.0, 1.003)
    lag.observe(2.0, 1.999)
    return build_exposition(recorder, lag, FULL)


def _names():
    return {metric.name.removesuffix("_total").removesuffix("_info") for metric in METRICS} | {
        name.removesuffix("_total") for name, _, _ in PROCESS_METRICS
    }


def test_text_says_every_metric_once():
    body, content_type = _busy().render(None)
    assert content_type == TEXT
    families = [family.name for family in parse_text(body.decode())]
    assert len(families) == len(set(families))
    assert {name.removesuffix("_info") for name in families} == _names()
    assert b"_created" not in body


def test_openmetrics_passes_the_strict_parser():
    body, content_type = _busy().render(PROMETHEUS)
    assert content_type == OPENMETRICS
    families = list(parse_openmetrics(body.decode()))
    assert {family.name for family in families} == _names()
    assert {family.name: family.unit for family in families}["sluice_ttft_seconds"] == "seconds"
    assert b"_created" not in body


def test_both_formats_say_the_same():
    exposition = _busy()
    text = read_samples(exposition.render("text/plain")[0])
    strict = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_openmetrics(exposition.render(PROMETHEUS)[0].decode())
        for sample in family.samples
    }
    assert {key: strict[key] for key in strict if not key[0].startswith("process_")} == {
        key: text[key] for key in text if not key[0].startswith("process_")
    }


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text; version=1.0.0", True),
        (PROMETHEUS, True),
        ("application/openmetrics-text;q=0.2, text/plain", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=lots", False),
        ("application/openmetrics-text;version=1\r\nx: y;q=0.3", True),
    ],
)
def test_format_follows_accept(accept, expected):
    assert prefers_openmetrics(accept) is expected


def test_states_are_those_of_the_scrape():
    samples = scrape(Recorder(TIERS), snapshot=FULL)
    single = {"queued_requests": 3, "queued_tokens": 900, "permits_held": 7, "draining": 1, "connections": 12}
    for name, value in {**single, "body_bytes_in_flight": 4096}.items():
        assert value_of(samples, f"sluice_{name}") == value
    assert value_of(samples, "sluice_in_flight_requests", worker="w-ready") == 4
    assert value_of(samples, "sluice_worker_healthy", worker="w-sick") == 0
    for state in ("ready", "resting", "draining", "unhealthy", "leaving"):
        assert value_of(samples, "sluice_workers", state=state) == 1
    assert value_of(samples, "sluice_build_info", version="0.1.0") == 1


def test_unknown_is_absent():
    samples = scrape(Recorder(TIERS), snapshot=FULL)
    assert value_of(samples, "sluice_worker_load_age_seconds", worker="w-ready") == 0.25
    ages = [key for key in samples if key[0] == "sluice_worker_load_age_seconds"]
    assert len(ages) == 1
    samples = scrape(Recorder(TIERS))
    assert value_of(samples, "sluice_connections") is None
    assert value_of(samples, "sluice_body_bytes_in_flight") is None


def test_a_scaler_finds_its_series_without_workers():
    samples = scrape(Recorder(TIERS))
    for name in ("queued_requests", "queued_tokens", "permits_held"):
        assert value_of(samples, f"sluice_{name}") == 0
    assert value_of(samples, "sluice_workers", state="ready") == 0


def test_gauges_are_read_at_scrapes_only():
    calls = []

    def gauges():
        calls.append(None)
        return Snapshot(NOTHING)

    exposition = Exposition(Recorder(TIERS), LoopLag(), gauges, "0.1.0")
    assert not calls
    exposition.render(None)
    exposition.render(None)
    assert len(calls) == 2


def test_lag_of_the_loop():
    samples = read_samples(_busy().render(None)[0])
    assert value_of(samples, "sluice_event_loop_lag_seconds_count") == 2
    assert value_of(samples, "sluice_event_loop_lag_seconds_sum") == pytest.approx(0.003)
    assert value_of(samples, "sluice_event_loop_lag_seconds_bucket", le="0.005") == 2


def test_expositions_do_not_share_a_registry():
    one, other = Recorder(TIERS), Recorder(TIERS)
    one.settle(build_stream())
    labels = {"tier": "default", "kind": "chat_completions", "outcome": "completed"}
    assert value_of(scrape(one), "sluice_requests_total", **labels) == 1
    assert value_of(scrape(other), "sluice_requests_total", **labels) == 0


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_say():
    body, _ = _busy().render(None)
    ours = b"".join(line + b"\n" for line in body.splitlines() if b"process_" not in line)
    found = subprocess.run(["promtool", "check", "metrics"], input=ours, capture_output=True, timeout=30, check=False)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")


def test_what_is_shared_is_told_and_absent_without_a_store():
    alone = scrape(Recorder(TIERS), snapshot=Snapshot(NOTHING, quotas=QuotaFigures(3, {Passage.WITHIN: 7})))
    assert value_of(alone, "sluice_quota_decisions_total", passage="within") == 7
    assert value_of(alone, "sluice_quota_accounts") == 3
    assert not any(name.startswith(("sluice_store", "sluice_gateways")) for name, _ in alone)
    calls = {("exchange", Condition.SLOW): 2}
    told = scrape(Recorder(TIERS), snapshot=Snapshot(NOTHING, quotas=QuotaFigures(0, {}, calls, True, 4)))
    assert value_of(told, "sluice_store_calls_total", call="exchange", condition="slow") == 2
    assert value_of(told, "sluice_store_calls_total", call="directory", condition="fine") == 0
    assert (value_of(told, "sluice_store_away"), value_of(told, "sluice_gateways")) == (1, 4)
