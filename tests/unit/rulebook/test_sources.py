"""What people write: read into values, or refused with every fault, its file, path and line."""

import shutil
from pathlib import Path

import pytest
import yaml

from service.rulebook.sources import read_sources
from service.settings.fault import SettingsRefusedError
from service.slo.objective import Indicator, Severity, Speed
from service.slo.window import THIRTY_DAYS

SLO = Path(__file__).parents[3] / "slo"


@pytest.fixture
def folder(tmp_path):
    for name in ("objectives", "windows"):
        shutil.copytree(SLO / name, tmp_path / name)
    return tmp_path


def change(folder, name, **parts):
    path = folder / name
    tree = {**yaml.safe_load(path.read_text()), **parts}
    path.write_text(yaml.safe_dump({key: value for key, value in tree.items() if value is not ...}, sort_keys=False))


def faults(folder):
    with pytest.raises(SettingsRefusedError) as refused:
        read_sources(folder)
    return [str(fault) for fault in refused.value.faults]


def test_the_committed_files_are_read():
    sources = read_sources(SLO)
    priority, default = sources.tiers[2], sources.tiers[0]
    assert [tier.tier for tier in sources.tiers] == ["default", "flex", "priority"]
    assert priority.find(Indicator.AVAILABILITY).target == 0.999
    assert priority.find(Indicator.ALL).severity_of(Speed.FAST) is None
    assert default.find(Indicator.TTFT).fast is Severity.TICKET
    assert priority.ttft_targets_s == ((4096, 1.0), (32768, 3.0), (131072, 12.0), (1048576, 60.0))
    assert sources.tiers[1].best_effort
    assert sources.descriptions["priority"].startswith("Interactive")


def test_gateways_watch_by_the_plan_of_the_file():
    assert read_sources(SLO).plan == THIRTY_DAYS


def test_all_faults_of_all_files_are_told_at_once(folder):
    change(folder, "objectives/priority.yaml", tier="gold", surprise=1)
    change(folder, "objectives/default.yaml", objectives={"availability": {"target": 1.5}})
    change(folder, "windows/30d.yaml", bucket="7h")
    found = faults(folder)
    assert any("priority.yaml: surprise" in line and "line" in line for line in found)
    assert any("default.yaml: objectives.availability.target" in line for line in found)
    assert any("whole number of buckets" in line for line in found)


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ({"tier": "gold"}, "name the file after the tier"),
        ({"tier": "none"}, "which is what figures call requests of no tier"),
        ({"best_effort": True}, "one of the two"),
        ({"targets": {"tpot_s": 0.1}}, "the objective ttft and its target go together"),
        ({"targets": {"ttft": {8192: 2.0, 4096: 1.0}, "tpot_s": 0.1}}, "ascending"),
        ({"objectives": {"speed": {"target": 0.9}}}, "objectives.speed"),
        ({"timeWindow": [{"duration": "30d", "isRolling": False}]}, "timeWindow[0].isRolling (line"),
        ({"timeWindow": [{"duration": "7d", "isRolling": True}]}, "tiers differ in their timeWindow: 30d, 7d"),
        ({"budgetingMethod": "Timeslices"}, "budgetingMethod"),
        (
            {"objectives": {"availability": {"target": 0.9}, "ttft": {"target": 0.99}, "tpot": {"target": 0.99}}},
            "factor 14.4 x (1 - 0.9) is 1.44: the 1h alert could never fire",
        ),
    ],
)
def test_each_fault_of_a_tier_is_named(folder, parts, fault):
    change(folder, "objectives/priority.yaml", **parts)
    assert any(fault in line for line in faults(folder)), faults(folder)


def test_an_objective_that_can_never_be_told_may_be_silenced(folder):
    quiet = {"target": 0.9, "fast": "none", "slow": "ticket"}
    objectives = {"availability": quiet, "ttft": {"target": 0.99}, "tpot": {"target": 0.99}}
    change(folder, "objectives/priority.yaml", objectives=objectives)
    assert read_sources(folder).tiers[2].find(Indicator.AVAILABILITY).target == 0.9


@pytest.mark.parametrize(
    ("pair", "fault"),
    [
        ({"factor": 14}, "pairs[0].budget_spent: is 0.02, but factor x long / period is 0.0194444"),
        ({"short": "1h"}, "the short window is not shorter"),
        ({"long": "an hour"}, "'an hour' is not a duration"),
        ({"long": 3600, "short": None}, "pairs[0].short (line"),
    ],
)
def test_each_fault_of_a_plan_is_named(folder, pair, fault):
    pairs = yaml.safe_load((folder / "windows/30d.yaml").read_text())["pairs"]
    change(folder, "windows/30d.yaml", pairs=[{**pairs[0], **pair}, *pairs[1:]])
    assert any(fault in line for line in faults(folder)), faults(folder)


def test_what_is_not_there_or_not_yaml(folder):
    (folder / "windows/30d.yaml").unlink()
    (folder / "objectives/flex.yaml").write_text("tier: [")
    (folder / "objectives/default.yaml").write_text("tier: default\ntier: default\nservice: x\nbest_effort: true\n")
    found = faults(folder)
    assert any("30d.yaml" in line and "no such file" in line for line in found)
    assert any("flex.yaml" in line and "not valid YAML" in line for line in found)
    assert any("default.yaml: tier (line 2): stands twice" in line for line in found)


def test_a_folder_without_objectives(tmp_path):
    shutil.copytree(SLO / "windows", tmp_path / "windows")
    assert "has no objectives" in faults(tmp_path)[0]


def test_only_best_effort_needs_a_plan_too(folder):
    for name in ("priority", "default"):
        (folder / "objectives" / f"{name}.yaml").unlink()
    assert [tier.tier for tier in read_sources(folder).tiers] == ["flex"]
