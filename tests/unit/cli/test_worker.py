"""``sluice worker``: what it prints, what it refuses, what it becomes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli import worker, worker_drain
from service.launch.cpu_engine import CpuEngine
from service.launch.facts import EngineFacts, Gpu, MachineFacts
from service.launch.fault import EngineUnavailableError
from service.launch.preflight import ENGINE_MODULES
from service.workers.emptying import Emptied, EmptyingConfig, Ending

READY = MachineFacts(
    gpus=(Gpu("NVIDIA B200", (10, 0), 183_359 * 2**20),) * 4,
    driver_version="580",
    driver_cuda="13.0",
    engine=EngineFacts(
        python="/opt/python", vllm_version="0.34.0", torch_cuda="13.0", modules=frozenset(ENGINE_MODULES)
    ),
    memory_available_bytes=64e9,
    machine="x86_64",
    system="Linux",
)

Became = tuple[str, tuple[str, ...], dict[str, str]]


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Became]:
    """What the process was replaced by; the machine is a good one and the CPU engine is there."""
    taken: list[Became] = []
    engine = CpuEngine(tmp_path / "python", tmp_path)
    engine.python.touch()
    monkeypatch.setattr(worker, "probe_machine", lambda python: READY)
    monkeypatch.setattr(worker, "locate_cpu_engine", lambda: engine)
    monkeypatch.setattr(worker, "prepare_cpu_engine", lambda progress, clock: engine)
    monkeypatch.setattr("os.execvpe", lambda *call: taken.append(call))
    return taken


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(worker.app, words)
    return result.exit_code, result.stdout, result.stderr


def test_plan_prints_the_production_line() -> None:
    code, out, _ = run("plan")
    assert code == 0
    assert out.startswith("VLLM_HTTP_TIMEOUT_KEEP_ALIVE=120 \\\n  vllm serve MiniMaxAI/MiniMax-M3.1-Flash \\\n")
    assert "  --kv-cache-dtype nvfp4 \\\n" in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--url", "127.0.0.1:8000"), "--url: worker '127.0.0.1:8000': must begin with http"),
        (("--delay-s", "9", "--deadline-s", "3"), "--delay-s is 9, above --deadline-s (3): lower it"),
    ],
)
def test_a_drain_that_cannot_be_meant_is_refused(words: tuple[str, ...], told: str) -> None:
    code, _, err = run("drain", *words)
    assert code == 2
    assert told in err


@pytest.mark.parametrize(
    ("emptied", "told"),
    [
        (Emptied(Ending.EMPTY, 0, 7.25), "127.0.0.1:8000 is empty after 7.2 s"),
        (Emptied(Ending.GONE, 0, 0.0), "127.0.0.1:8000: nobody listens there"),
        (Emptied(Ending.DEADLINE, 4, 30.0), "127.0.0.1:8000 still has 4 requests after 30.0 s"),
        (Emptied(Ending.DEADLINE, None, 30.0), "still has an unknown number of requests"),
    ],
)
def test_a_drain_ends_well_whatever_it_found(monkeypatch: pytest.MonkeyPatch, emptied: Emptied, told: str) -> None:
    asked = []
    monkeypatch.setattr(worker_drain, "wait_until_empty", lambda config, *_: asked.append(config) or emptied)
    code, out, _ = run("drain", "--deadline-s", "30", "--delay-s", "2")
    assert (code, asked) == (0, [EmptyingConfig(30.0, 2.0)])
    assert told in out


def test_plan_as_json_follows_the_options() -> None:
    code, out, _ = run(
        "plan", "--json", "--kv-cache-dtype", "fp8", "--running-requests", "100", "--schedule", "1-100:2"
    )
    assert code == 0
    told = json.loads(out)
    assert told["environment"] == {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120"}
    assert told["argv"][told["argv"].index("--max-num-queued-reqs") + 1] == "121"


def test_plan_of_the_cpu_profile() -> None:
    code, out, _ = run("plan", "--profile", "cpu-small", "--port", "9001")
    assert code == 0
    assert "run_vllm.py serve" in out
    assert "--port 9001" in out


@pytest.mark.parametrize("command", ["plan", "preflight", "run"])
def test_bad_input_names_field_and_cure(command: str) -> None:
    code, _, err = run(command, "--profile", "m3")
    assert code == 2
    assert "--profile: 'm3' does not exist. Cure: use m3.1-flash or cpu-small." in err


def test_a_faulty_profile_is_bad_input() -> None:
    code, _, err = run("plan", "--data-parallel", "2", "--shutdown-grace-s", "0")
    assert code == 2
    assert len(err.splitlines()) == 2
    assert run("plan", "--port", "0")[0] == 2


def test_preflight_on_a_good_machine(became: list[Became]) -> None:
    code, out, _ = run("preflight")
    assert code == 0
    assert out.endswith("m3.1-flash: ready\n")
    assert became == []


def test_preflight_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "probe_machine", lambda python: replace(READY, gpus=None))
    code, out, _ = run("preflight")
    assert code == 1
    assert "FAILED   gpu: no NVIDIA GPU: nvidia-smi is not on this machine" in out
    assert "m3.1-flash: not ready, 1 check(s) failed" in out
    code, out, _ = run("preflight", "--json")
    assert code == 1
    told = json.loads(out)
    assert told["ready"] is False
    assert {"name": "profile", "verdict": "passed", "message": "m3.1-flash is consistent", "cure": ""} in told["checks"]


def test_run_becomes_the_worker(became: list[Became], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "yes")
    run("run", "--profile", "m3.1-flash", "--engine-python", "/opt/bin/python", "--shutdown-grace-s", "120")
    ((program, argv, environment),) = became
    assert argv[argv.index("--shutdown-timeout") + 1] == "120"
    assert program == argv[0] == "/opt/bin/vllm"
    assert environment["KEPT"] == "yes"
    assert environment["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] == "120"


def test_run_takes_the_pods_grace_and_its_seat(became: list[Became]) -> None:
    seat = ("--tensor-parallel", "8", "--nodes", "2", "--node-rank", "1", "--leader", "first.pods")
    run("run", "--shutdown-grace-s", "1800", *seat)
    ((_, argv, _),) = became
    assert argv[argv.index("--shutdown-timeout") + 1] == "1800"
    assert argv[argv.index("--nnodes") :][:7] == (
        "--nnodes", "2", "--node-rank", "1", "--master-addr", "first.pods", "--headless",
    )  # fmt: skip
    code, _, err = run("run", "--nodes", "2", "--node-rank", "0")
    assert code == 2
    assert "the leader is unknown" in err
    assert run("run", "--nodes", "2", "--leader", "first.pods")[0] == 2


def test_run_of_the_cpu_profile(became: list[Became], tmp_path: Path) -> None:
    run("run", "--profile", "cpu-small", "--port", "9001")
    ((program, argv, environment),) = became
    assert program == str(tmp_path / "python")
    assert argv[2:4] == ("serve", str(tmp_path))
    assert environment["OMP_NUM_THREADS"] == "1"


def test_run_stops_at_the_preflight_unless_forced(became: list[Became], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "probe_machine", lambda python: replace(READY, gpus=()))
    code, out, _ = run("run", "--profile", "m3.1-flash")
    assert (code, became) == (1, [])
    assert "nvidia-smi lists no GPU" in out
    run("run", "--profile", "m3.1-flash", "--force")
    assert became[0][0] == "vllm"


def test_run_without_a_cpu_engine(became: list[Became], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(progress: object, clock: object) -> CpuEngine:
        raise EngineUnavailableError("no room")

    monkeypatch.setattr(worker, "prepare_cpu_engine", fail)
    assert run("run", "--profile", "cpu-small")[0::2] == (1, "no room\n")
    assert became == []


def test_run_of_a_program_that_is_not_there(became: list[Became], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*call: object) -> None:
        raise FileNotFoundError("no such file")

    monkeypatch.setattr("os.execvpe", fail)
    code, _, err = run("run", "--profile", "m3.1-flash")
    assert code == 1
    assert "vllm cannot be started" in err
    assert became == []
