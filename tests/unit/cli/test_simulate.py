"""``sluice simulate``: what it runs, and what it says when there is nothing to run."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from service.cli import simulate

ROOT = Path(__file__).parents[3]


@pytest.fixture
def app():
    app = typer.Typer()
    app.command(context_settings=simulate.CONTEXT_SETTINGS)(simulate.simulate)
    return app


@pytest.fixture
def ran(monkeypatch):
    calls = []

    def run(command, cwd, check):
        calls.append((command, cwd))
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(simulate.subprocess, "run", run)
    return calls


def test_arguments_go_to_the_simulator_and_its_code_comes_back(app, ran):
    done = CliRunner().invoke(app, ["steady", "--load", "0.5", "--help"])
    assert done.exit_code == 3
    assert ran == [([sys.executable, "-m", "loadtests.sim.run", "steady", "--load", "0.5", "--help"], ROOT)]


def test_without_arguments_it_shows_the_simulators_help(app, ran):
    CliRunner().invoke(app, [])
    assert ran[0][0][-1] == "--help"


def test_it_says_what_is_missing(app, ran, monkeypatch):
    monkeypatch.setattr(simulate, "find_repository", lambda start: None)
    done = CliRunner().invoke(app, ["steady"])
    assert done.exit_code == 2
    assert "loadtests/sim" in done.output
    assert not ran


def test_a_repository_is_known_by_the_simulator(tmp_path):
    assert simulate.find_repository(tmp_path) is None
    assert simulate.find_repository(ROOT) == ROOT
