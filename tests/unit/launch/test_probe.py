"""Reading what the machine answers."""

import os
import sys
from pathlib import Path

import pytest

from service.launch import probe
from service.launch.facts import Gpu
from service.launch.preflight import ENGINE_MODULES
from service.launch.probe import (
    ENGINE_SIDE,
    parse_available_memory,
    parse_driver_cuda,
    parse_gpu_listing,
    probe_engine,
    probe_machine,
)

LISTING = """\
NVIDIA B200, 10.0, 183359, 580.65.06
NVIDIA GB10, [N/A], [N/A], 580.65.06
some message
"""


def write_program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_gpu_listing() -> None:
    gpus, driver = parse_gpu_listing(LISTING)
    assert gpus == (Gpu("NVIDIA B200", (10, 0), 183359 * 2**20), Gpu("NVIDIA GB10", None, None))
    assert driver == "580.65.06"
    assert parse_gpu_listing("") == ((), None)


def test_driver_cuda() -> None:
    assert parse_driver_cuda("| NVIDIA-SMI 580.65.06   Driver Version: 580.65.06   CUDA Version: 13.0  |") == "13.0"
    assert parse_driver_cuda("nothing") is None


def test_available_memory() -> None:
    assert parse_available_memory("MemTotal: 10 kB\nMemAvailable:    2048 kB\n") == 2048 * 1024
    assert parse_available_memory("MemTotal: 10 kB\n") is None


def test_engine_that_is_not_there(tmp_path: Path) -> None:
    assert probe_engine(None) == (None, None)
    facts, problem = probe_engine(tmp_path / "python")
    assert facts is None
    assert "does not exist" in str(problem)
    broken = write_program(tmp_path / "python", "#!/bin/sh\nexit 3\n")
    facts, problem = probe_engine(broken)
    assert facts is None
    assert "does not run" in str(problem)


def test_a_python_without_vllm_says_so() -> None:
    facts, problem = probe_engine(Path(sys.executable))
    assert problem is None
    assert facts is not None
    assert (facts.vllm_version, facts.torch_cuda, facts.modules) == (None, None, frozenset())


def test_an_engine_is_described_without_importing_it(tmp_path: Path) -> None:
    module = tmp_path / "vllm" / "models" / "minimax_m3"
    module.mkdir(parents=True)
    for folder in (tmp_path / "vllm", module.parent, module):
        (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "vllm-9.9.dist-info").mkdir()
    (tmp_path / "vllm-9.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.9\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "torch" / "version.py").write_text("cuda: Optional[str] = '13.0'\n")
    python = write_program(tmp_path / "python", f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n')
    facts, problem = probe_engine(python)
    assert problem is None
    assert facts is not None
    assert (facts.vllm_version, facts.torch_cuda) == ("9.9", "13.0")
    assert facts.modules == {ENGINE_MODULES[0]}


def test_a_machine_with_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    banner = "Driver Version: 580.65.06  CUDA Version: 13.0"
    write_program(
        tmp_path / "nvidia-smi",
        f"#!/bin/sh\nif [ $# -gt 0 ]; then echo 'NVIDIA B200, 10.0, 183359, 580.65.06'; else echo '{banner}'; fi\n",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    facts = probe_machine(None)
    assert facts.gpus == (Gpu("NVIDIA B200", (10, 0), 183359 * 2**20),)
    assert (facts.driver_version, facts.driver_cuda) == ("580.65.06", "13.0")
    assert facts.memory_available_bytes


def test_a_machine_without_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = probe_machine(None)
    assert (facts.gpus, facts.driver_version, facts.driver_cuda) == (None, None, None)


def test_an_answer_that_takes_too_long_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "ASK_LIMIT_S", 0.05)
    facts, problem = probe_engine(write_program(tmp_path / "python", "#!/bin/sh\nexec sleep 5\n"))
    assert facts is None
    assert "did not answer" in str(problem)


def test_scripts_of_the_engine_side_exist() -> None:
    assert {path.name for path in ENGINE_SIDE.glob("*.py")} == {
        "build_small_model.py",
        "describe_engine.py",
        "run_vllm.py",
    }
    assert not (ENGINE_SIDE / "__init__.py").exists()
