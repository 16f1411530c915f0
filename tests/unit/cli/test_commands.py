"""The command line: help, exit codes, JSON for scripts."""

import json
import re

import pytest
import yaml
from typer.testing import CliRunner

from service.cli.commands import build_app
from service.cli.demo import Engine, make_keys, plan_workers, render_curl, write_config
from service.gateway.auth import hash_key
from service.launch.fault import EngineUnavailableError
from service.settings.build import load_plan
from service.settings.release import read_version
from tests.unit.settings.test_load import GOOD

runner = CliRunner()
COMMANDS = (
    "up",
    "serve",
    "check",
    "keys",
    "worker",
    "bench",
    "slo",
    "prober",
    "emulate",
    "drain",
    "explain",
    "replay",
    "version",
)

app = build_app()


def run(*arguments: str, **environment: str | None):
    return runner.invoke(app, list(arguments), env=environment, terminal_width=120)


def test_help_names_every_command():
    text = run("--help").output
    assert all(re.search(rf"\b{command}\b", text) for command in COMMANDS)
    assert run().exit_code == 2, "no command at all is bad input"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command):
    answer = run(command, "--help")
    assert answer.exit_code == 0
    assert len(answer.output) > 100


def test_version():
    assert run("version").output.strip() == f"{read_version()} (interpreted)"


def test_version_of_a_tree_that_was_never_installed(monkeypatch):
    from importlib.metadata import PackageNotFoundError

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("service.settings.release.version", missing)
    assert read_version() == "source"


def test_a_new_key_is_shown_once_with_the_line_for_the_file():
    text = run("keys", "new").output
    key = re.search(r"sk-sluice-\S{40,}", text).group()
    (line,) = [line for line in text.splitlines() if line.strip().startswith("- {")]
    (kept,) = yaml.safe_load(line)
    assert kept["hash"] == "sha256:" + hash_key(key.encode()).hex()
    assert key.startswith(kept["prefix"])
    assert len(kept["prefix"]) < 20
    assert text.count(key) == 1
    told = json.loads(run("keys", "new", "--json").output)
    assert told["hash"] == "sha256:" + hash_key(told["key"].encode()).hex()


def test_check(tmp_path):
    path = tmp_path / "sluice.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    assert "fine" in run("check", "-c", str(path)).output
    assert run("check", SLUICE_CONFIG=str(path)).exit_code == 0
    assert json.loads(run("check", "-c", str(path), "--json").output) == {"faults": []}
    path.write_text("modle: x\n")
    told = run("check", "-c", str(path))
    assert told.exit_code == 2
    assert "5 faults" in told.output
    assert "did you mean 'model'?" in told.output
    answer = run("check", "-c", str(path), "--json")
    assert answer.exit_code == 2
    assert {fault["path"] for fault in json.loads(answer.output)["faults"]} == {
        "modle", "model", "pool", "tiers", "tenants",
    }  # fmt: skip
    path.write_text(yaml.safe_dump({**GOOD, "ledger": "x"}))
    assert "1 fault\n" in run("check", "-c", str(path)).output


@pytest.mark.parametrize("command", ["check", "serve"])
def test_without_a_file_the_cure_is_named(command, tmp_path):
    answer = run(command, SLUICE_CONFIG=None)
    assert answer.exit_code == 2
    assert "-c FILE" in answer.output
    answer = run(command, "-c", str(tmp_path / "none.yaml"))
    assert answer.exit_code == 2
    assert "there is no such file" in answer.output


def test_drain_without_a_token(tmp_path):
    answer = run("drain", "--admin", "http://127.0.0.1:1", SLUICE_ADMIN_TOKEN=None, XDG_RUNTIME_DIR=str(tmp_path))
    assert answer.exit_code == 1
    assert "SLUICE_ADMIN_TOKEN" in answer.output


def test_up_refuses_one_port_for_both():
    assert run("up", "--port", "26001", "--admin-port", "26001").exit_code == 2


def test_the_demo_configuration_is_valid_and_holds_no_key(tmp_path):
    said: list[str] = []
    plan = plan_workers(Engine.EMULATED, [26002, 26003], said.append)
    assert len(plan.commands) == 2
    assert all("service.emulator" in argv for argv, _ in plan.commands)
    keys = make_keys()
    path = write_config(tmp_path, plan, [26002, 26003], 26000, 26001, keys, tmp_path)
    built = load_plan(path, {}, b"")
    assert {tenant.tier for _, tenant, _ in built.keys} == set(keys) == {"priority", "default", "flex"}
    assert {digest for digest, _, _ in built.keys} == {hash_key(key.encode()) for key in keys.values()}
    assert all(key not in path.read_text() for key in keys.values())
    curl = render_curl(26000, plan.model, keys["flex"])
    assert "\n" not in curl
    assert json.loads(re.search(r"-d '(.*)'", curl).group(1))["stream"] is True


def test_the_gpu_engine_is_refused_where_there_are_no_gpus(monkeypatch):
    with pytest.raises(EngineUnavailableError, match="sluice worker preflight"):
        plan_workers(Engine.VLLM, [26002], print)
    monkeypatch.setattr("service.cli.demo.is_ready", lambda checks: True)
    plan = plan_workers(Engine.VLLM, [26002, 26003], print)
    assert [environment["CUDA_VISIBLE_DEVICES"] for _, environment in plan.commands] == ["0,1,2,3", "4,5,6,7"]


def test_the_cpu_engine_is_prepared_first(monkeypatch, tmp_path):
    from service.launch.cpu_engine import CpuEngine

    prepared = CpuEngine(tmp_path / "python", tmp_path / "model")
    monkeypatch.setattr("service.cli.demo.prepare_cpu_engine", lambda say, clock: prepared)
    plan = plan_workers(Engine.VLLM_CPU, [26002], print)
    assert plan.profile == "cpu-small"
    assert plan.commands[0][0][0] == str(tmp_path / "python")
