"""``sluice bench``: which module each bench is, with which arguments, and what is said where there is no repository."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli import bench
from service.cli.commands import build_app

app = build_app()

ROOT = Path(__file__).parents[3]
MODULES = {
    "overhead": "loadtests.live.overhead",
    "overload": "loadtests.live.overload",
    "calibrate": "loadtests.calibration.run",
}


@pytest.fixture
def ran(monkeypatch):
    calls = []

    def run(command, env, check):
        calls.append((command, env["PYTHONPATH"].split(os.pathsep)[0]))
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(bench.subprocess, "run", run)
    return calls


@pytest.mark.parametrize(("name", "module"), MODULES.items())
def test_arguments_go_to_the_bench_and_its_code_comes_back(name, module, ran):
    done = CliRunner().invoke(app, ["bench", name, "--quick", "--judge", "file.json", "--help"])
    assert done.exit_code == 3
    assert ran == [([sys.executable, "-m", module, "--quick", "--judge", "file.json", "--help"], str(ROOT))]
    assert find_spec(module) is not None


def test_it_runs_where_it_is_called_so_that_files_are_the_callers(monkeypatch):
    def run(command, **options):
        assert "cwd" not in options
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(bench.subprocess, "run", run)
    assert CliRunner().invoke(app, ["bench", "calibrate"]).exit_code == 0


def test_it_says_what_is_missing(ran, monkeypatch):
    monkeypatch.setattr(bench, "find_repository", lambda start: None)
    done = CliRunner().invoke(app, ["bench", "overload"])
    assert done.exit_code == 2
    assert "clone of the repository" in done.output
    assert not ran


def test_help_names_every_bench():
    text = CliRunner().invoke(app, ["bench", "--help"]).output
    assert all(name in text for name in MODULES)
