"""What the Makefile and the project file promise."""

import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make(*arguments: str) -> str:
    argv = ["make", "--no-print-directory", "PYTHON=python", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True).stdout


def test_help_lists_every_target():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    listed = set(re.findall(r"^  make ([a-z-]+)", make("help"), re.MULTILINE))
    assert {"run", "test", "bench-slow-readers", "bench-aiperf"} <= listed
    assert targets == listed


def test_what_coverage_leaves_out_runs_without_it():
    lines = make("--dry-run", "test").splitlines()
    assert any("tests/unit/telemetry/test_cost.py" in line and "--cov" not in line for line in lines)


def test_the_server_whose_internals_we_build_on_has_an_upper_bound():
    with (ROOT / "pyproject.toml").open("rb") as file:
        needs = tomllib.load(file)["project"]["dependencies"]
    (need,) = [need for need in needs if need.startswith("uvicorn")]
    bound = re.search(r"<0\.(\d+)$", need)
    assert bound is not None
    assert int(version("uvicorn").split(".")[1]) < int(bound[1])
