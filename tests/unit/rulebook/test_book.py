"""The committed files are those that follow from the objectives; what else is there is found."""

import shutil
from pathlib import Path

import yaml

from service.cli.demo import TIERS
from service.rulebook.book import build_book, compare_book, find_strangers, write_book
from service.rulebook.sources import read_sources
from service.settings.build import load_plan
from service.settings.schema import TierSettings
from service.slo.alerts import ALERTS
from service.slo.objective import find_differences

ROOT = Path(__file__).parents[3]
SLO = ROOT / "slo"


def test_committed_files_are_those_that_are_generated():
    assert compare_book(SLO, build_book(read_sources(SLO))) == [], "run 'sluice slo generate'"


def test_the_same_sources_give_the_same_bytes():
    assert build_book(read_sources(SLO)) == build_book(read_sources(SLO))


def test_a_changed_a_missing_and_a_strange_file_are_found_and_written_away(tmp_path):
    shutil.copytree(SLO, tmp_path, dirs_exist_ok=True)
    book = build_book(read_sources(tmp_path))
    recording = tmp_path / "rules" / "recording.yaml"
    recording.write_text(recording.read_text().replace("[5m]", "[6m]"))
    (tmp_path / "rules" / "alerts.yaml").unlink()
    (tmp_path / "rules" / "by-hand.yaml").write_text("groups: []\n")
    lines = compare_book(tmp_path, book)
    assert any(line.startswith("-") and "[6m]" in line for line in lines)
    assert "+++ b/rules/alerts.yaml\t" in lines or "+++ b/rules/alerts.yaml" in lines
    assert "rules/by-hand.yaml: nothing generates this file" in lines
    assert sorted(write_book(tmp_path, book)) == ["rules/alerts.yaml", "rules/by-hand.yaml", "rules/recording.yaml"]
    assert compare_book(tmp_path, book) == []
    assert find_strangers(tmp_path, book) == []


def test_objectives_promise_what_the_example_and_the_demonstration_are_configured_for():
    written = {tier.tier: tier for tier in read_sources(SLO).tiers}
    configured = load_plan(ROOT / "deploy" / "sluice.example.yaml", {}, b"").corridor.tiers
    assert set(written) == set(configured) == set(TIERS)
    for name, tier in configured.items():
        assert find_differences(written[name], tier) == []
        shown = TierSettings.model_validate(TIERS[name])
        assert (tuple(shown.ttft.items()), shown.tpot_s) == (tier.ttft_targets_s, tier.tpot_target_s)
        assert (shown.availability, shown.attainment) == (tier.availability, tier.attainment)


def test_every_scenario_of_silence_has_its_mutant():
    for tier in ("priority", "default"):
        cases = yaml.safe_load((SLO / "tests" / f"{tier}.yaml").read_text())
        mutants = {
            rule["alert"]
            for rule in yaml.safe_load((SLO / "tests" / "mutants" / f"{tier}.yaml").read_text())["groups"][0]["rules"]
        }
        used = set()
        for case in cases["tests"]:
            fired = [check for check in case["promql_expr_test"] if "Mutant" in check["expr"]]
            loud = [check for check in case["promql_expr_test"] if "ALERTS" in check["expr"] and check["exp_samples"]]
            assert loud, f"{case['name']}: nothing ever fires, so its silence proves nothing"
            used |= {name for name in mutants for check in fired if name in check["expr"]}
        assert used == mutants


def test_every_alert_has_its_runbook():
    assert {path.stem for path in (SLO / "runbooks").glob("*.md")} == set(ALERTS)
