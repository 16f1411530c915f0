"""The report of predictions: what is counted, and that it is written."""

import json
from dataclasses import replace

from loadtests.sim import prediction
from loadtests.sim.population import Retry
from loadtests.sim.prediction import Returns, build_told, find_error, find_returns, find_windows, main, run
from loadtests.sim.scenario import SCENARIOS

SHORT = replace(SCENARIOS["uniform"], workers=2, warmup_s=2.0, duration_s=10.0, settle_s=3.0, load=0.8)


def test_windows_count_first_tokens_by_tier(monkeypatch):
    monkeypatch.setattr(prediction, "WINDOW_S", 5.0)
    world = run(SHORT, 1)
    windows = find_windows(world)
    assert [(one.tier, one.begin_s) for one in windows] == [("hi", 2.0), ("hi", 7.0), ("lo", 2.0), ("lo", 7.0)]
    known = [one for one in world.attempts if one.prediction and one.first_token_at and one.arrived_at >= 2.0]
    assert sum(one.dispatched for one in windows) == len(known)
    for one in windows:
        assert 0.0 < one.error < 1.0
        assert 0.5 < one.covered_dispatch <= 1.0
        assert 0.5 < one.covered_arrival <= 1.0
    assert min(one.error for one in windows) <= find_error(world) <= max(one.error for one in windows)


def test_only_those_who_came_back_are_counted():
    scenario = replace(build_told(SHORT, 3.0, waves=False), duration_s=10.0)
    assert all(tenant.client.retry is Retry.TOLD for tenant in scenario.tenants)
    world = run(scenario, 1)
    returns = find_returns(world, "x")
    assert returns.within + returns.beyond == sum(one.tries == 1 for one in world.attempts) > 0
    assert 0.0 <= returns.ratio <= 1.0
    assert Returns("x", 1.0, 0, 0, 0, 0).ratio is None


def test_waves_bend_the_load():
    shapes = {tenant.arrivals.shape for tenant in build_told(SHORT, 0.5, waves=True).tenants}
    assert shapes == {prediction.WAVES}


def test_the_command_writes_its_report(tmp_path, capsys, monkeypatch):
    small = replace(SCENARIOS["drift"], workers=2, warmup_s=5.0, settle_s=3.0)
    monkeypatch.setitem(SCENARIOS, "drift", small)
    assert main(["--seeds", "1", "--duration", "8", "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "prediction.json").read_text())
    assert len(record["windows"]) == 1
    assert len(record["returns"]) == 4
    assert (tmp_path / "prediction.md").read_text() in capsys.readouterr().out
