"""What is kept of aiperf's summary."""

import re

import pytest

from loadtests.live.aiperf_run import LOCK, show, summarise

TOLD = {
    "aiperf_version": "0.13.0",
    "request_count": {"unit": "requests", "avg": 199.0},
    "error_request_count": {"unit": "requests", "avg": 1.0},
    "error_summary": [{"error_details": {"message": "no content"}, "count": 1}],
    "time_to_first_token": {"unit": "ms", "avg": 9.0, "p50": 8.0, "p99": 20.0},
}


def test_summary_counts_failures(capsys: pytest.CaptureFixture[str]) -> None:
    report = summarise(TOLD, 200)
    assert (report["asked"], report["completed"], report["failed"]) == (200, 199, 1)
    assert report["figures"] == {"TTFT ms": {"p50": 8.0, "p99": 20.0}}
    show(report)
    assert "199 of 200 completed, 1 failed" in capsys.readouterr().out


def test_absent_counts_are_none_failed() -> None:
    report = summarise({"aiperf_version": "1", "request_count": {"avg": 5.0}, "error_request_count": None}, 5)
    assert (report["completed"], report["failed"], report["errors"]) == (5, 0, [])


def test_lock_pins_everything_and_names_no_place() -> None:
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!-]+", line) for line in lines)
