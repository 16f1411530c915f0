"""The two pictures over all scenarios."""

import json

import pytest

from loadtests.sim.overview import draw_overview, list_promised_tiers, load_reports


def build_report(name, loads):
    tiers = {
        "priority": {"contract_attainment": 0.99, "ideal_contract_attainment": 1.0},
        "flex": {"contract_attainment": None, "ideal_contract_attainment": None},
    }
    runs = [
        {"arm": arm, "load": load, "goodput_rps": 40.0 + load, "tiers": tiers}
        for load in loads
        for arm in ("sluice", "x")
    ]
    return {"scenario": name, "runs": runs}


def write(folder, name, loads):
    (folder / f"{name}.json").write_text(json.dumps(build_report(name, loads)))


def test_only_reports_over_several_loads_are_drawn(tmp_path):
    write(tmp_path, "mixed", (1.2, 2.0, 5.0))
    write(tmp_path, "mooncake", (1.2,))
    write(tmp_path, "steady", (1.2, 2.0, 5.0))
    assert [report["scenario"] for report in load_reports(tmp_path)] == ["mixed"]


def test_tiers_without_contracts_have_no_picture():
    assert list_promised_tiers(build_report("mixed", (1.0,))) == ["priority"]


def test_nothing_to_draw(tmp_path):
    assert draw_overview(tmp_path) == []


def test_two_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    write(tmp_path, "mixed", (1.2, 2.0, 5.0))
    write(tmp_path, "uniform", (1.2, 2.0, 5.0))
    paths = draw_overview(tmp_path)
    assert [path.name for path in paths] == ["attainment.png", "goodput.png"]
    assert all(path.stat().st_size > 10_000 for path in paths)
