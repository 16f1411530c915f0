"""Bounds of the stream and slow-reader runs."""

import json
from pathlib import Path

import pytest

from loadtests.live import slow_reader, streams
from loadtests.live.checks import Check, all_hold, check_at_most, write_checks
from loadtests.live.peer_configs import Site
from loadtests.live.target import fill_command

STREAM_FIGURES = {
    "most_open": 2000,
    "errors": {},
    "chunks": 100,
    "chunks_expected": 100,
    "ttfb_ms": {"p50": 1.0, "p99": 2.0, "max": 3.0},
    "longest_gap_ms": {"p50": None, "p99": None, "max": None},
    "rss_before_kib": 50_000,
    "rss_peak_kib": 200_000,
    "descriptors_before": 20,
    "descriptors_most": 4020,
    "descriptors_after": 20,
}
READER_FIGURES = {
    "readers_flooded": 48,
    "readers_closed_by_gateway": 2,
    "rss_before_kib": 50_000,
    "rss_peak_kib": 60_000,
    "growth_kib_per_reader": 200.0,
    "errors_beside": {},
    "longest_gap_alone_ms": {"max": 21.0},
    "longest_gap_beside_ms": {"max": 40.0},
    "descriptors_before": 20,
    "descriptors_after": 20,
}


def test_a_missing_figure_does_not_hold():
    assert check_at_most("x", None, 1.0).holds is False
    assert check_at_most("x", 1.0, 1.0).holds is True
    assert all_hold([Check("x", "1"), check_at_most("y", 0, 1)])


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, True),
        ({"most_open": 1999}, False),
        ({"errors": {"status 503": 1}}, False),
        ({"chunks": 99}, False),
        ({"rss_peak_kib": 301 * 1024}, False),
        ({"rss_peak_kib": None}, False),
        ({"descriptors_after": 21}, False),
    ],
)
def test_bounds_of_held_streams(change, holds):
    options = streams.build_parser().parse_args([])
    assert all_hold(streams.build_checks({**STREAM_FIGURES, **change}, options)) is holds


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, True),
        ({"readers_flooded": 40}, False),
        ({"growth_kib_per_reader": 513.0}, False),
        ({"errors_beside": {"connection lost": 1}}, False),
        ({"longest_gap_beside_ms": {"max": 1001.0}}, False),
        ({"longest_gap_beside_ms": {"max": None}}, False),
    ],
)
def test_bounds_of_slow_readers(change, holds):
    options = slow_reader.build_parser().parse_args([])
    assert all_hold(slow_reader.build_checks({**READER_FIGURES, **change}, options)) is holds


def test_streams_last_until_the_last_one_has_been_held():
    load = streams.build_stream_load(2000, 5.0, 60.0, 500)
    assert (load.requests, load.tokens, load.pause_ms) == (2000, 130, 500)


def test_report_says_whether_all_holds(tmp_path):
    write_checks(tmp_path / "new" / "x.json", [check_at_most("x", 2, 1)], {"x": 2})
    report = json.loads((tmp_path / "new" / "x.json").read_text())
    assert (report["holds"], report["figures"]) == (False, {"x": 2})


def test_gateway_command_is_filled():
    site = Site(port=1, admin_port=2, worker_ports=(3, 4), folder=Path("/f"))
    assert fill_command("gw --port {port} --to '{workers}' {folder}/x", site) == [
        *("gw", "--port", "1", "--to", "http://127.0.0.1:3,http://127.0.0.1:4", "/f/x")
    ]
