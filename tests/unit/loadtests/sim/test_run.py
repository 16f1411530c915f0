"""The command: what it accepts, prints and writes."""

import json

import pytest

from loadtests.sim import run
from loadtests.sim.traces import TraceMissingError


def test_a_quick_run_prints_a_table_and_writes_a_report(tmp_path, capsys):
    arguments = ["uniform", "--arm", "static,sluice", "--load", "2", "--quick", "--duration", "3", "--workers", "1"]
    assert run.main([*arguments, "--seeds", "2", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "ideal" in printed
    assert "static" in printed
    report = json.loads((tmp_path / "uniform.json").read_text())
    assert [(line["arm"], line["runs"]) for line in report["runs"]] == [("static", 2), ("sluice", 2)]
    for line in report["runs"]:
        tier = line["tiers"]["hi"]
        assert sum(tier["fates"].values()) == tier["offered"]
        assert line["goodput_rps"] <= line["bound_rps"]


def test_pictures_for_loads_and_for_timelines(tmp_path):
    pytest.importorskip("matplotlib")
    small = ["--arm", "static", "--quick", "--duration", "2", "--workers", "1", "--out", str(tmp_path)]
    run.main(["uniform", "--load", "0.5,1,2", *small])
    run.main(["death", *small[:-4], "--workers", "2", *small[-2:]])
    assert (tmp_path / "uniform.png").stat().st_size > 10_000
    assert (tmp_path / "death.png").stat().st_size > 10_000


def test_what_is_unknown_is_said(capsys):
    for arguments in (["nothing"], ["uniform", "--arm", "magic"], []):
        with pytest.raises(SystemExit) as ended:
            run.main(arguments)
        assert ended.value.code == 2
    assert "--list" in capsys.readouterr().err


def test_the_list_names_everything(capsys):
    assert run.main(["--list"]) == 0
    printed = capsys.readouterr().out
    assert "kv-cliff" in printed
    assert "smg-told" in printed


def test_a_missing_trace_is_left_out_and_said(monkeypatch, capsys):
    def fail(scenario, args):
        raise TraceMissingError("not here")

    monkeypatch.setattr(run, "adapt", fail)
    assert run.main(["mooncake"]) == 1
    assert "mooncake: left out, not here" in capsys.readouterr().out
