"""An autoscaler never reads "no data" as "no load": the questions to Prometheus, evaluated by promtool.

Whatever is empty, not a number, stale or only a part, a question about it is answered by nothing, so that KEDA's
fallback and the scaler's hold come into force; a fleet at zero still has the series that it is started again by.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.scaler.config import SteeringConfig
from service.scaler.queries import Part, Window, build_miss_query, build_queries, build_valid_query
from service.scaler.scaled_object import build_query

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed"),
]

CONFIG = SteeringConfig("m3", 'job="sluice"')
KEDA = build_query("m3")
DESIRED = 'sluice_desired_replicas{pool="m3",instance="s1"}'
AGE = 'sluice_scaler_input_age_seconds{pool="m3",instance="s1"}'
OTHER = 'sluice_desired_replicas{pool="m3",instance="s2"}'
OTHER_AGE = 'sluice_scaler_input_age_seconds{pool="m3",instance="s2"}'
NAIVE = 'max(sluice_desired_replicas{pool="m3"}) or vector(0)'


def check(folder: Path, series: dict[str, str], query: str, expected: list[dict[str, Any]], at: str = "20m") -> bool:
    """Whether ``query`` at ``at`` is answered so, by a real PromQL engine."""
    test = {
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [{"expr": query, "eval_time": at, "exp_samples": expected}],
            }
        ],
    }
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(test))
    return subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, check=False).returncode == 0


def one(value: float) -> list[dict[str, Any]]:
    return [{"labels": "{}", "value": value}]


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        ({DESIRED: "7x100", AGE: "5x100"}, one(7)),
        ({DESIRED: "7x100", AGE: "5x100", OTHER: "6x100", OTHER_AGE: "5x100"}, one(7)),
        ({DESIRED: "7x100", AGE: "5x100", OTHER: "9x100", OTHER_AGE: "900x100"}, one(7)),
        ({}, []),
        ({DESIRED: "7x10 stale", AGE: "5x10 stale"}, []),
        ({DESIRED: "7x100"}, []),
        ({DESIRED: "7x100", AGE: "900x100"}, []),
        ({DESIRED: "7x100", AGE: "NaN " * 100}, []),
    ],
    ids=["fresh", "two agree", "one is blind", "empty", "gone", "age unknown", "blind", "age not a number"],
)
def test_d16_keda_gets_a_fresh_number_or_nothing(
    tmp_path: Path, series: dict[str, str], expected: list[dict[str, Any]]
) -> None:
    assert check(tmp_path, series, KEDA, expected)


def test_d16_a_naive_question_is_answered_by_zero(tmp_path: Path) -> None:
    """The mutant: the check above can fail."""
    assert check(tmp_path, {}, NAIVE, one(0))
    assert not check(tmp_path, {}, NAIVE, [])
    assert check(tmp_path, {DESIRED: "7x100", AGE: "900x100"}, NAIVE, one(7))


WORK = 'sluice_offered_work_seconds_total{job="sluice",instance="g%d",claim="%s"}'
BOTH = {WORK % (1, "guaranteed"): "0+60x100", WORK % (2, "guaranteed"): "0+30x100"}
QUERIES = build_queries(CONFIG)


def test_d16_demand_is_in_workers_and_absent_when_it_is_not_told(tmp_path: Path) -> None:
    told = [{"labels": '{claim="guaranteed"}', "value": 6.0}]
    assert check(tmp_path, BOTH, QUERIES[Part.DEMAND], told)
    assert check(tmp_path, {}, QUERIES[Part.DEMAND], [])
    gone = dict.fromkeys(BOTH, "0+60x40 stale")
    assert check(tmp_path, gone, QUERIES[Part.DEMAND], [])
    quiet = dict.fromkeys(BOTH, "0+60x40 _x60")  # no mark of staleness, but nothing for a quarter of an hour
    assert check(tmp_path, quiet, QUERIES[Part.DEMAND], [])


def test_d16_a_missing_gateway_shows_beside_the_targets(tmp_path: Path) -> None:
    series = {
        'sluice_permits_held{job="sluice",instance="g1"}': "3x100",
        'sluice_permits_held{job="sluice",instance="g2"}': "3x40 stale",
        'up{job="sluice",instance="g1"}': "1x100",
        'up{job="sluice",instance="g2"}': "1x40 0x60",
    }
    assert check(tmp_path, series, QUERIES[Part.GATEWAYS], one(1))
    assert check(tmp_path, series, QUERIES[Part.TARGETS], one(2))


@pytest.mark.parametrize("part", [part for part in Part if part is not Part.DEMAND])
def test_d16_every_question_is_answered_by_nothing_where_nothing_is_known(tmp_path: Path, part: Part) -> None:
    assert check(tmp_path, {}, QUERIES[part], [])


def test_d16_burn_has_no_answer_without_counters_and_zero_while_they_stand_still(tmp_path: Path) -> None:
    misses = 'sluice_slo_misses_total{job="sluice",tier="gold",cause="capacity"}'
    query = build_miss_query(CONFIG, Window.M5, True)
    assert check(tmp_path, {}, query, [])
    assert check(tmp_path, {misses: "4x100"}, query, [{"labels": '{tier="gold"}', "value": 0}])
    assert check(tmp_path, {}, build_valid_query(CONFIG, Window.H1), [])


def test_d16_a_fleet_at_zero_still_tells_its_demand(tmp_path: Path) -> None:
    """Demand is what arrives at the gateways, so it is there while no worker is."""
    series = {WORK % (1, "guaranteed"): "0+30x100", 'sluice_workers{job="sluice",instance="g1",state="ready"}': "0x100"}
    assert check(tmp_path, series, QUERIES[Part.DEMAND], [{"labels": '{claim="guaranteed"}', "value": 2.0}])
    assert check(tmp_path, series, QUERIES[Part.WORKERS], [{"labels": '{state="ready"}', "value": 0}])
