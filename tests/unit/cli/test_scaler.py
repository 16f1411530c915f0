"""``sluice scaler``, as far as it needs no Prometheus."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from service.cli.commands import build_app
from service.cli.elastic import Elasticity, _read_port, find_prometheus, write_prometheus_config
from service.cli.scaler import build_config
from service.launch.fault import EngineUnavailableError

app = build_app()

EXAMPLE = Path(__file__).parents[3] / "deploy" / "sluice.example.yaml"


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["scaler", *arguments])
    return result.exit_code, result.output


def test_the_scaled_object_is_yaml() -> None:
    code, text = run("--scaled-object", "m3-workers", "--pool", "m3", "--least", "2", "--most", "9")
    manifest = yaml.safe_load(text)
    assert code == 0
    assert manifest["spec"]["scaleTargetRef"]["name"] == "m3-workers"
    assert manifest["spec"]["maxReplicaCount"] == 9
    assert 'pool="m3"' in manifest["spec"]["triggers"][0]["metadata"]["query"]


def test_bounds_and_selectors_that_cannot_be_are_bad_input() -> None:
    code, text = run("--least", "5", "--most", "2")
    assert code == 2
    assert "give a smaller --least or a greater --most" in text
    code, text = run("-c", str(EXAMPLE), "--selector", "job=sluice", "--once")
    assert code == 2
    assert "label matchers" in text


def test_all_times_are_in_proportion_to_a_step() -> None:
    usual, quick = build_config("m3", "", 1, 8, 600.0, 30.0), build_config("m3", "", 1, 8, 4.0, 0.3)
    assert (usual.scaling.hold_s, usual.scaling.slot_s, usual.scaling.lead_s) == (1800.0, 300.0, 660.0)
    assert quick.scaling.hold_s == pytest.approx(18.0)
    assert quick.scaling.lead_s == pytest.approx(4.6)


def test_what_a_fleet_needs_is_named_when_it_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineUnavailableError, match="apt-get install prometheus"):
        find_prometheus()


def test_prometheus_scrapes_three_times_a_step(tmp_path: Path) -> None:
    path = write_prometheus_config(tmp_path, Elasticity(1, 2, 1.0, 3.0, 9090, 8083), 8081)
    written = yaml.safe_load(path.read_text())
    assert written["global"]["scrape_interval"] == "1000ms"
    assert [job["static_configs"][0]["targets"] for job in written["scrape_configs"]] == [
        ["127.0.0.1:8081"],
        ["127.0.0.1:8083"],
    ]


def test_a_worker_is_known_by_its_port() -> None:
    assert _read_port("127.0.0.1:9001") == _read_port("127.0.0.1:9001~3") == 9001
