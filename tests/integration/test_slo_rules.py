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


@pytest.mark.parametrize(
    ("file", "pattern", "replacement", "scenario", "told"),
    [
        (
            "alerts-priority", r"\n +and slo:bad:increase.*", "", "one failure among three",
            'got: {alertname="SluiceBudgetBurnFast"}',
        ),
        ("alerts-priority", r"\n +and slo:bad:increase.*events:.*", "", "a quiet hour after", "SluiceBudgetBurnFast"),
        ("alerts-priority", r"\n +and slo:bad:ratio(5m|30m).*", "", "an outage of 20 minutes", "2h65m|3h5m"),
        ("alerts-priority", r"\n +keep_firing_for: 5m", "", "an outage of 20 minutes", "2h52m"),
        ("recording", r" or slo:\w+:increase1h", "", "first minutes of a Prometheus", "got: nil"),
        ("recording", r" > 0\)", ")", "six hours without a request", "NaN"),
        ("recording", r"increase\(", "delta(", "one of two replicas restarts", "exp|got"),
        ("alerts-priority", r"for: 1m", "for: 30m", "no gateway reports", "got: nil"),
    ],
)  # fmt: skip
def test_promtool_notices_a_rule_that_is_wrong(tmp_path, file, pattern, replacement, scenario, told):
    """Each precaution left out breaks the scenario that is about it: the tests are able to fail."""
    shutil.copytree(SLO, tmp_path, dirs_exist_ok=True)
    rules = tmp_path / "rules" / f"{file}.yaml"
    changed, count = re.subn(pattern, replacement, rules.read_text())
    assert count
    rules.write_text(changed)
    path = tmp_path / "tests" / "priority.yaml"
    cases = yaml.safe_load(path.read_text())
    cases["tests"] = [case for case in cases["tests"] if scenario in case["name"]]
    assert len(cases["tests"]) == 1
    path.write_text(yaml.safe_dump(cases))
    done = promtool("test", "rules", str(path))
    assert done.returncode != 0, "nobody noticed"
    assert re.search(told, done.stdout + done.stderr), done.stdout + done.stderr


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
