"""Order, rows, verdicts and the page of an overhead run."""

import argparse
from dataclasses import replace

import pytest

from loadtests.live.client import Load
from loadtests.live.overhead import build_client_command, build_order, build_steps, parse_peers
from loadtests.live.overhead_report import (
    HEADINGS,
    Sample,
    build_rows,
    build_warnings,
    count_errors,
    draw_picture,
    format_cells,
    format_page,
    format_verdict,
)
from loadtests.live.peers import Running

VERSIONS = {"direct": "-", "sluice": "0.1.0", "vllm-router": "0.1.17", "smg": "1.13.0"}
MACHINE = {"processor": "P", "cores": 2, "memory_gib": 8.0, "kernel": "6", "python": "3.11", "load_average": [0.1]}


def sample(peer, step, round_number=1, *, us=10.0, p50=1.0, errors=None, busy=0.3, lag=1.0):
    result = {
        "cpu_us_per_request": us,
        "cpu_us_per_chunk": us / 4,
        "rps": 1000.0,
        "rss_peak_kib": 2048,
        "ttfb_ms": {"p50": p50},
        "e2e_ms": {"p50": p50 * 2},
        "errors": errors or {},
        "client": {"busy_ratio": busy, "lag_ms": {"p99": lag}},
    }
    return Sample(peer, round_number, step, result)


def run_of_two_rounds():
    return [
        sample(peer, step, round_number, us=us * factor, p50=p50)
        for round_number, factor in ((1, 1.0), (2, 3.0))
        for peer, us, p50 in (("direct", 5.0, 0.5), ("sluice", 20.0, 0.75), ("vllm-router", 40.0, 1.5))
        for step in ("json", "stream", "json-single", "stream-single")
    ]


def test_rows_hold_medians_ratios_and_what_is_added():
    direct, sluice, reference = build_rows(run_of_two_rounds(), VERSIONS)
    assert [direct.peer, sluice.peer, reference.peer] == ["direct", "sluice", "vllm-router"]
    assert sluice.us_per_request == 40.0
    assert sluice.us_per_chunk == 10.0
    assert (sluice.ratio_request, sluice.ratio_chunk) == (0.5, 0.5)
    assert (sluice.added_ttfb_stream_ms, sluice.added_total_stream_ms) == (0.25, 0.5)
    assert sluice.rss_peak_mib == 2.0
    assert (reference.ratio_request, direct.ratio_request, direct.added_ttfb_json_ms) == (1.0, None, None)


def test_ratio_is_missing_without_the_reference():
    row = build_rows([sample("sluice", "json")], VERSIONS)[0]
    assert row.ratio_request is None
    assert row.us_per_chunk is None
    assert format_verdict(row) == "-"


def test_verdict_of_a_gateway_that_refused_requests_is_invalid():
    sluice = build_rows(run_of_two_rounds(), VERSIONS)[1]
    assert format_verdict(sluice) == "0.50 / 0.50"
    assert format_verdict(replace(sluice, errors=3)) == "invalid"


def test_errors_are_counted_over_all_loads():
    samples = [sample("smg", "json", errors={"status 503": 2}), sample("smg", "stream", errors={"no [DONE]": 1})]
    assert count_errors(samples, "smg") == 3


def test_warnings_name_a_busy_client_a_late_one_and_failures():
    warnings = build_warnings(
        [
            sample("smg", "json", busy=0.95),
            sample("smg", "stream", lag=40.0),
            sample("smg", "json", errors={"x": 1}),
            sample("direct", "json", busy=0.99),
            sample("smg", "json"),
        ]
    )
    assert len(warnings) == 3


def test_cells_fit_the_headings():
    assert {len(format_cells(row)) for row in build_rows(run_of_two_rounds(), VERSIONS)} == {len(HEADINGS)}


def test_page_names_machine_command_and_what_is_missing():
    page = format_page(
        build_rows(run_of_two_rounds(), VERSIONS),
        command="python -m loadtests.live.overhead",
        rounds=2,
        machine=MACHINE,
        skipped={"nginx": "missing"},
        warnings=["busy"],
    )
    for text in ("| sluice", "2 cores", "`python -m loadtests.live.overhead`", "* nginx: missing", "* busy"):
        assert text in page


def test_picture_is_drawn(tmp_path):
    draw_picture(build_rows(run_of_two_rounds(), VERSIONS), tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_order_is_turned_every_second_round():
    assert build_order(["direct", "a", "b"], 1) == ["direct", "a", "b"]
    assert build_order(["direct", "a", "b"], 2) == ["direct", "b", "a"]


def test_quick_steps_are_a_quarter():
    assert build_steps(quick=False)["json"].requests == 8000
    assert build_steps(quick=True)["json"] == Load(16, 2000, False, 16, 0)


def test_client_command_says_the_whole_load():
    command = build_client_command(Load(50, 300, True, 100, 5), Running(port=1, pid=2, key="k"))
    text = " ".join(command)
    assert "--load stream --concurrency 50 --requests 300 --tokens 100 --pause-ms 5 --key k" in text


def test_peers_of_a_list():
    assert parse_peers("smg, vllm-router,smg") == ("smg", "vllm-router")
    with pytest.raises(argparse.ArgumentTypeError, match="unknown: other"):
        parse_peers("other")
