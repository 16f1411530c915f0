"""Calibration on a real vLLM: everything is asked, measured, fitted and judged. Figures belong to a quiet machine."""

import json
from pathlib import Path

from loadtests.calibration import run as command
from service.emulator.profile_file import load_profile
from tests.support.engine_process import EngineProcess


def test_a_real_engine_is_measured_fitted_and_judged(cpu_worker: EngineProcess, tmp_path: Path) -> None:
    options = ["--worker", cpu_worker.url, "--quick", "--seconds", "3", "--load", "0.2", "--limit", "20"]
    assert command.main([*options, "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "calibration.json").read_text())
    assert record["engine"]["version"].startswith("0.32")
    assert record["engine"]["block_size"] == 128
    assert record["failed"] == []
    assert [run["requests"] > 0 for run in record["runs"]] == [True]
    assert record["fit"]["loss"] <= record["fit"]["loss_of_first_guess"]
    assert load_profile(str(tmp_path / "calibrated.json")).cost.base_s > 0.0
