"""``sluice slo``: what it writes, what it finds, how it says so."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from service.cli.commands import build_app

app = build_app()

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "deploy" / "sluice.example.yaml"


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(ROOT / "slo", tmp_path / "slo")
    return tmp_path / "slo"


def run(*arguments):
    return CliRunner().invoke(app, ["slo", *map(str, arguments)], terminal_width=120)


def test_what_is_committed_is_fine():
    answer = run("check", "--dir", ROOT / "slo", "-c", EXAMPLE)
    assert answer.exit_code == 0, answer.output
    assert "fine (3 tiers, 8 objectives)" in answer.output


def test_a_changed_objective_changes_rules_until_they_are_generated(folder):
    path = folder / "objectives" / "priority.yaml"
    path.write_text(path.read_text().replace("target: 0.999", "target: 0.9995"))
    answer = run("check", "--dir", folder)
    assert answer.exit_code == 1
    assert "14.4 * 0.0005" in answer.output
    assert "run 'sluice slo generate'" in answer.output
    answer = run("generate", "--dir", folder)
    assert "rules/alerts-priority.yaml" in answer.output
    assert run("check", "--dir", folder).exit_code == 0
    assert "0 of them changed" in run("generate", "--dir", folder).output


def test_a_gateway_that_promises_something_else_is_found(folder, tmp_path):
    tree = yaml.safe_load(EXAMPLE.read_text())
    tree["tiers"]["priority"]["availability"] = 0.99
    tree["tiers"]["extra"] = {"rank": 9, "best_effort": True}
    del tree["tiers"]["flex"]
    config = tmp_path / "sluice.yaml"
    config.write_text(yaml.safe_dump(tree))
    answer = run("check", "--dir", folder, "-c", config, "--json")
    assert answer.exit_code == 1
    told = json.loads(answer.output)
    assert told["generated"] == []
    assert told["config"] == [
        "tier extra has no objectives file",
        "there is no tier flex, but objectives for it",
        "priority.availability: the objectives say 0.999, the configuration 0.99",
    ]
    assert "the objectives say 0.999" in run("check", "--dir", folder, "-c", config).output


def test_what_cannot_be_read_is_bad_input(folder, tmp_path):
    (folder / "windows" / "30d.yaml").write_text("period: soon\n")
    answer = run("check", "--dir", folder)
    assert answer.exit_code == 2
    assert "30d.yaml: period" in answer.output
    config = tmp_path / "sluice.yaml"
    config.write_text("model: x\n")
    assert run("check", "--dir", ROOT / "slo", "-c", config).exit_code == 2


def test_many_differences_are_cut_short(folder):
    shutil.rmtree(folder / "rules")
    answer = run("check", "--dir", folder)
    assert "lines more" in answer.output


def test_without_grafanas_library_it_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "service.rulebook.dashboards", None)
    monkeypatch.setitem(sys.modules, "grafana_foundation_sdk", None)
    answer = run("generate", "--dir", folder)
    assert answer.exit_code == 1
    assert "sluice[slo]" in answer.output


def test_documents_go_out_and_come_in(folder, tmp_path):
    exported = run("export", "--dir", folder)
    assert exported.exit_code == 0
    file = tmp_path / "slos.yaml"
    file.write_text(exported.output)
    answer = run("import", file, "--dir", folder)
    assert answer.exit_code == 2
    assert "--force replaces them" in answer.output
    answer = run("import", file, "--dir", folder, "--force")
    assert "wrote" in answer.output
    assert run("check", "--dir", folder).exit_code == 0, "the same rules follow"
    file.write_text("kind: SLO\n")
    answer = run("import", file, "--dir", folder)
    assert answer.exit_code == 2
    assert "only openslo/v1 is read" in answer.output
