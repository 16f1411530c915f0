"""The micro benchmark measures what it says, in small."""

import json

import pytest

from loadtests.sim import decisions


@pytest.mark.parametrize(("load", "per_turn"), [("serve", 3), ("refuse", 1)])
@pytest.mark.parametrize("queued", [0, 7])
def test_the_queue_keeps_its_length(load, per_turn, queued):
    figure = decisions.measure(load, queued, turns=20, rounds=2)
    assert figure.decisions == 20 * per_turn
    assert figure.us_per_decision > 0


def test_the_report(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(decisions, "QUEUES", (3,))
    monkeypatch.setattr("sys.argv", ["decisions", "--turns", "5", "--rounds", "1", "--out", str(tmp_path / "r.json")])
    decisions.main()
    report = json.loads((tmp_path / "r.json").read_text())
    assert [figure["queued_requests"] for figure in report["figures"]] == [3, 3]
    assert "us/decision" in capsys.readouterr().out


def test_the_profile(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["decisions", "--profile", "3", "--turns", "5"])
    decisions.main()
    assert "handle" in capsys.readouterr().out
