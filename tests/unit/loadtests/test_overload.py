"""The overload test's arms, tables and command line."""

import argparse
import hashlib
import json
from pathlib import Path

import pytest
import yaml

from loadtests.live import overload, overload_arms, overload_runs
from loadtests.live.ideal import ANCHOR_RATIO, Ideal
from loadtests.live.overload_arms import ARMS, EngineFacts, Setting
from loadtests.live.overload_report import (
    Run,
    build_cell,
    build_doubts,
    build_refusal_rows,
    build_table,
    draw_picture,
    format_cell,
    format_lag,
)
from loadtests.live.peer_configs import Site
from loadtests.live.traffic import MIXED, UNIFORM, Schedule, compute_arrivals

SITE = Site(port=23701, admin_port=23702, worker_ports=(23700, 23703), folder=Path("/somewhere"))
SETTING = Setting(UNIFORM, EngineFacts(16, {"hi": 8.0, "lo": 8.0}, 2.0))
TIERS = ("hi", "lo")


def build_run(arm, load, hi, lo, goodput, number=1, lag=1.0):
    tiers = {
        tier: {
            "offered": 10,
            "good": round(10 * share),
            "attainment": share,
            "verdicts": {"refused": 4},
            "refusal_ms": {"p50": 1.0, "p99": 2.0},
            "retry_after_s": {"min": 1, "max": 3},
            "ttft_ms": {"p50": 100.0, "p99": 1200.0},
        }
        for tier, share in (("hi", hi), ("lo", lo))
    }
    client = {"lag_ms": {"p99": 0.5}, "send_lag_ms": {"p99": lag, "max": 2 * lag}, "busy_ratio": 0.1}
    return Run(arm, load, number, {"tiers": tiers, "goodput_rps": goodput, "client": client})


def test_smg_gets_strict_order_and_queues_that_can_be_served():
    classes = yaml.safe_load(overload_arms.build_smg_scheduler(SETTING))["classes"]
    assert classes["interactive"]["queue_size"] == 6
    assert classes["bulk"]["queue_size"] == 30
    assert (classes["interactive"]["queue_timeout_secs"], classes["bulk"]["queue_timeout_secs"]) == (1, 5)
    command = overload_arms.build_smg_overload_command(Path("smg"), SITE)
    assert command[command.index("--priority-scheduler-default-max-class") + 1] == "interactive"
    assert ARMS["smg"].build_headers(UNIFORM) == {
        "hi": {"x-smg-priority": "interactive"},
        "lo": {"x-smg-priority": "bulk"},
    }


def test_engine_priority_comes_from_the_body_and_the_worker_orders_by_it():
    arm = ARMS["direct-priority"]
    assert arm.build_bodies(UNIFORM) == {"hi": {"priority": 0}, "lo": {"priority": 10}}
    assert arm.build_worker_options(SETTING) == ["--scheduling-policy", "priority"]


def test_envoy_measures_before_it_routes():
    bootstrap = yaml.safe_load(overload_arms.build_envoy_overload_bootstrap(SETTING, SITE))
    manager = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    assert [one["name"].rpartition(".")[2] for one in manager["http_filters"]] == ["adaptive_concurrency", "router"]
    gradient = manager["http_filters"][0]["typed_config"]["gradient_controller_config"]
    assert gradient["min_rtt_calc_params"]["fixed_value"] == "2.000s"


def test_nginx_tries_the_next_worker_and_workers_have_valves():
    text = overload_arms.build_nginx_overload_config(SITE, as_root=False)
    assert "least_conn;" in text
    assert "proxy_next_upstream error http_503 non_idempotent;" in text
    assert ARMS["nginx"].build_worker_options(SETTING) == ["--max-num-queued-reqs", "19"]


@pytest.mark.parametrize("mix", [UNIFORM, MIXED], ids=lambda mix: mix.name)
def test_sluice_is_told_tiers_and_keys_but_no_capacity(mix):
    config = yaml.safe_load(overload_arms.build_sluice_overload_config(mix, SITE))
    assert list(config["tiers"]) == ["hi", "lo"]
    assert config["tiers"]["hi"]["ttft"] == dict(mix.tiers[0].ttft_s)
    assert "limits" not in config
    for tenant in config["tenants"]:
        key = ARMS["sluice"].build_headers(mix)[tenant["tier"]]["authorization"].removeprefix("Bearer ")
        assert tenant["keys"][0]["hash"] == "sha256:" + hashlib.sha256(key.encode()).hexdigest()
        assert key.startswith(tenant["keys"][0]["prefix"])


def test_settings_told_are_json():
    assert json.loads(overload_arms.describe_settings(SETTING))["slots_per_worker"] == 16


def test_cells_are_medians_over_passes_and_marked_when_the_client_was_late():
    runs = [build_run("smg", 2.0, share, 0.1, 5.0, number) for number, share in ((1, 0.9), (2, 0.5), (3, 0.7))]
    assert format_cell(build_cell(runs, "smg", 2.0, TIERS)) == "70 / 10 %, 5.0"
    assert build_cell(runs, "smg", 3.0, TIERS) is None
    assert format_cell(None) == "-"
    late = build_run("smg", 2.0, 1.0, 0.1, 5.0, lag=80.0)
    assert format_cell(build_cell([late], "smg", 2.0, TIERS)).endswith("*")
    (doubt,) = build_doubts([*runs, late])
    assert "80 ms late" in doubt
    assert "worst 80.0 ms; latest send 160 ms" in format_lag([late])
    assert format_lag([]) == "no runs"


def test_table_has_the_ideal_first_and_only_measured_arms():
    ideals = {1.0: Ideal({"hi": 1.0, "lo": 1.0}, 6.0), 3.0: Ideal({"hi": 1.0, "lo": 0.2}, 8.0)}
    headings, rows = build_table([build_run("direct", 3.0, 0.0, 0.1, 1.0)], ideals, list(ARMS), TIERS)
    assert headings[1:] == ["1x", "3x"]
    assert rows == [["ideal", "100 / 100 %, 6.0", "100 / 20 %, 8.0"], ["no gateway", "-", "0 / 10 %, 1.0"]]


def test_refusals_are_told_with_their_hints():
    (row,) = build_refusal_rows([build_run("direct", 3.0, 0.0, 0.1, 1.0)], list(ARMS), 3.0, "hi")
    assert row == ["no gateway", "40 %", "1", "2", "1 to 3 s", "100", "1,200"]


def test_picture_is_drawn_with_gaps(tmp_path):
    ideals = {load: Ideal({"hi": 1.0, "lo": 1.0}, 6.0) for load in (1.0, 3.0)}
    draw_picture([build_run("sluice", 3.0, 0.0, 0.1, 1.0)], ideals, list(ARMS), TIERS, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_one_x_is_the_anchors_share_of_the_peak_of_all_workers():
    assert overload_runs.compute_unit_rps(MIXED, SETTING.facts) == pytest.approx(16.0 * ANCHOR_RATIO)


def test_the_ideal_is_of_the_very_traces_offered():
    options = overload.build_parser().parse_args(["--passes", "2", "--seconds", "10"])
    ideals = overload_runs.compute_ideals(UNIFORM, SETTING.facts, (0.5, 3.0), options)
    assert ideals[0.5].attainment == {"hi": 1.0, "lo": 1.0}
    schedules = [overload_runs.build_schedule(options, 1.5 * 8.0 * ANCHOR_RATIO, number) for number in (1, 2)]
    assert [schedule.seed for schedule in schedules] == [1, 2]
    offered = overload_runs.compute_offered_rps(UNIFORM, schedules)
    counted = sum(a.counted for schedule in schedules for a in compute_arrivals(UNIFORM, schedule))
    assert sum(offered.values()) == pytest.approx(counted / 20.0)
    assert ideals[3.0].goodput_rps == pytest.approx(8.0)


def test_the_plan_of_an_arm_is_bounded_by_the_slowest_good_answer():
    plan = overload_runs.build_plan(ARMS["direct"], UNIFORM, (1,), Schedule(1.0, 10.0), keep_rows=False)
    assert plan.limit_s == pytest.approx(10.0 + 5.0 + 6.4 + 1.0)


def test_worker_command_scales_its_steps_only_when_asked():
    assert "--fault" not in overload_runs.build_worker_command(1, 0, 1.0, [])
    assert "slow;factor=0.250000" in overload_runs.build_worker_command(1, 0, 4.0, [])


def test_command_line():
    parser = overload.build_parser()
    options = parser.parse_args(["--arms", "smg, direct,smg", "--loads", "3,1"])
    assert (options.arms, options.loads) == (("smg", "direct"), (1.0, 3.0))
    assert parser.parse_args([]).arms == tuple(ARMS)
    for parse, text in ((overload.parse_arms, "x"), (overload.parse_loads, "0"), (overload.parse_loads, "a")):
        with pytest.raises(argparse.ArgumentTypeError):
            parse(text)
