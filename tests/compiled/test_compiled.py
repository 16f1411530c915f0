"""The compiled form is the same gateway: what holds of the sources is run again on the wheel's machine code."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from loadtests.live.compiled import build_compiled_tree

ROOT = Path(__file__).parents[2]
NEEDED = ("tests", "loadtests", "slo", "deploy", "helm", "pyproject.toml", "README.md", "ARCHITECTURE.md", "Makefile")
SAME = (
    "tests/replay",
    "tests/conformance",
    *(f"tests/unit/{package}" for package in ("flow", "gateway", "runtime", "telemetry", "workers")),
)
"""Decisions equal to the last bit of every float (replay), and what the tests of each compiled package ask."""

CASES = ("relay_cancel", "relay_retry", "relay_slow", "edge_stream")
ON_SOCKETS = tuple(f"tests/integration/test_cases_{case}.py" for case in CASES)
"""Of the tests with real sockets. Naive versions, which are shown to fail, are left out: a compiled class lets nobody
put a method of his own into it."""


LEFT_OUT = ("fails_with", "seen_to_fail", "cost")
"""What costs are is measured alone, when nothing else runs."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests beside the compiled package, and nothing of the sources' own."""
    folder = tmp_path_factory.mktemp("compiled")
    for name in NEEDED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    for path in build_compiled_tree().iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def run(tree: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """A Python in ``tree``, whose compiled package comes first; coverage of the outer run is not its concern."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    environment |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *argv], cwd=tree, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def list_compiled() -> list[str]:
    """The modules that the project file names."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        hook = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
    found = {path for pattern in hook["include"] for path in ROOT.glob(pattern.lstrip("/"))}
    left_out = {ROOT / pattern.lstrip("/") for pattern in hook["exclude"]}
    return sorted(str(path.relative_to(ROOT).with_suffix("")).replace("/", ".") for path in found - left_out)


@pytest.mark.timeout(700)
def test_every_module_of_the_list_is_machine_code(tree: Path) -> None:
    modules = list_compiled()
    assert {"service.flow.controller", "service.runtime.relay"} <= set(modules)
    show = "import sys, importlib\nfor name in sys.argv[1:]: print(importlib.import_module(name).__file__)"
    done = run(tree, "-c", show, *modules)
    assert done.returncode == 0, done.stderr
    files = done.stdout.splitlines()
    assert len(files) == len(modules)
    assert [file for file in files if not file.endswith(".so")] == []
    assert run(tree, "-m", "service", "version").stdout.strip().endswith("(compiled)")


@pytest.mark.timeout(700)
@pytest.mark.parametrize("part", [*SAME, *ON_SOCKETS])
def test_it_passes_the_tests_of_its_sources(tree: Path, part: str) -> None:
    wanted = " and ".join(f"not {word}" for word in LEFT_OUT)
    done = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", wanted, part)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
