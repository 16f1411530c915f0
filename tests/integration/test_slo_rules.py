"""promtool on the committed rules: their form, and what they do on figures."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

SLO = Path(__file__).parents[2] / "slo"
RULES = sorted([*(SLO / "rules").glob("*.yaml"), *(SLO / "tests" / "mutants").glob("*.yaml")])
CASES = sorted((SLO / "tests").glob("*.yaml"))

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        shutil.which("promtool") is None and os.environ.get("CI") != "true", reason="promtool is not installed"
    ),
]


def promtool(*arguments):
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=280, check=False)


def test_rules_are_well_formed():
    assert len(RULES) >= 6
    done = promtool("check", "rules", *map(str, RULES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") == len(RULES)


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_rules_do_what_they_should(cases):
    done = promtool("test", "rules", str(cases))
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_notices_when_a_gate_is_missing(tmp_path):
    """A rule without its gates breaks the silence on one failure in a quiet hour: the tests are able to fail."""
    shutil.copytree(SLO, tmp_path, dirs_exist_ok=True)
    alerts = tmp_path / "rules" / "alerts-priority.yaml"
    kept = [line for line in alerts.read_text().splitlines() if not re.match(r" +and slo:bad:increase", line)]
    alerts.write_text("\n".join(kept))
    path = tmp_path / "tests" / "priority.yaml"
    cases = yaml.safe_load(path.read_text())
    cases["tests"] = [case for case in cases["tests"] if "one failure among three" in case["name"]]
    path.write_text(yaml.safe_dump(cases))
    done = promtool("test", "rules", str(path))
    assert done.returncode != 0
    assert 'got: {alertname="SluiceBudgetBurnFast"}' in done.stdout + done.stderr


def test_the_configurations_to_begin_with_are_valid():
    deploy = SLO.parent / "deploy"
    done = promtool("check", "config", str(deploy / "prometheus" / "prometheus.yml"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recording.yaml" in done.stdout
    if shutil.which("amtool") is None and os.environ.get("CI") != "true":
        pytest.skip("amtool is not installed")
    argv = ["amtool", "check-config", str(deploy / "alertmanager" / "alertmanager.yml")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 inhibit rules" in done.stdout
