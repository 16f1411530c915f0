"""Each architectural check finds a fault that was planted for it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture import checks

ROOT = Path(__file__).parents[2]
SWALLOW = "try:\n    pass\nexcept {}:\n    pass\n"


@pytest.fixture
def tree(tmp_path):
    """A small tree without fault, staged in a repository of its own."""
    for room in ("service", "service/domain", "service/flow", "loadtests", "tests"):
        write(tmp_path, f"{room}/__init__.py", '"""A room."""\n')
    write(tmp_path, "service/domain/unit.py", '"""Units."""\n\n\nclass Unit:\n    """One."""\n')
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
    return tmp_path


def write(root, name, text):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


LATER = "TO" + "DO"
HOME = "/ho" + "me/somebody"
WORKTREE = "/wo" + "rk/wt/core"
INDEX = "index-ur" + "l = https://pypi.example.org"

PLANTED = [
    (checks.check_length, "service/flow/long.py", '"""Long."""\n' + "x = 1\n" * 300),
    (checks.check_any, "service/flow/loose.py", '"""Loose."""\nfrom typing import Any\n'),
    (checks.check_any, "service/domain/loose.py", '"""Loose."""\nimport typing\nx: typing.Any = 1\n'),
    (checks.check_module_names, "service/flow/utils.py", '"""Anything."""\n'),
    (checks.check_module_names, "tests/helpers/__init__.py", '"""Anything."""\n'),
    (checks.check_class_names, "service/flow/boss.py", '"""Boss."""\nclass QueueManager:\n    """Rules."""\n'),
    (checks.check_class_names, "loadtests/boss.py", '"""Boss."""\nclass HTTPHandler:\n    """Rules."""\n'),
    (checks.check_catch_alls, "service/all.py", '"""All."""\n' + SWALLOW.format("Exception") * 4),
    (checks.check_catch_alls, "service/all.py", '"""All."""\n' + SWALLOW.format("(OSError, BaseException)") * 4),
    (checks.check_catch_alls, "service/all.py", '"""All."""\n' + "try:\n    pass\nexcept:\n    pass\n" * 4),
    (checks.check_docstrings, "tests/bare.py", "x = 1\n"),
    (checks.check_docstrings, "service/flow/__init__.py", ""),
    (checks.check_docstrings, "service/bare.py", '"""A."""\ndef act():\n    pass\n'),
    (checks.check_docstrings, "service/bare.py", '"""A."""\nclass Act:\n    pass\n'),
    (checks.check_packages, "service/cellar/wine.py", '"""Wine."""\n'),
    (checks.check_packages, "service/launch/engine_side/deeper/run.py", '"""Run."""\n'),
    (checks.check_packages, "service/launch/engine_side/__init__.py", '"""Scripts."""\n'),
    (checks.check_packages, "loadtests/engine_side/run.py", '"""Run."""\n'),
    (checks.check_loose_ends, "notes.md", f"{LATER}: later\n"),
    (checks.check_machine_traces, "notes.md", f"see {HOME}\n"),
    (checks.check_machine_traces, "deploy/pip.conf", f"{INDEX}\n"),
    (checks.check_machine_traces, "Makefile", f"cd {WORKTREE}\n"),
]


@pytest.mark.parametrize("check", checks.CHECKS[1:], ids=lambda check: check.__name__)
def test_a_sound_tree_has_no_fault(tree, check):
    assert check(tree) == []


@pytest.mark.parametrize(("check", "name", "text"), PLANTED, ids=lambda value: getattr(value, "__name__", "-"))
def test_a_planted_fault_is_found(tree, check, name, text):
    write(tree, name, text)
    subprocess.run(["git", "add", "-A"], cwd=tree, check=True)
    (fault, *_) = check(tree)
    assert name.split("/")[0] in fault


def test_three_catch_alls_are_allowed_and_narrow_ones_are_not_counted(tree):
    write(tree, "service/all.py", '"""All."""\n' + SWALLOW.format("Exception") * 3 + SWALLOW.format("OSError") * 9)
    assert checks.check_catch_alls(tree) == []


def test_scripts_of_the_engine_are_no_package(tree):
    write(tree, "service/launch/__init__.py", '"""A room."""\n')
    write(tree, "service/launch/engine_side/run.py", '"""Run."""\n')
    assert checks.check_packages(tree) == []


def test_folders_of_scripts_exist():
    for name in checks.SCRIPT_FOLDERS:
        assert list((ROOT / name).glob("*.py"))


def test_every_check_has_a_planted_fault():
    assert {check for check, _, _ in PLANTED} == set(checks.CHECKS) - {checks.check_imports}


@pytest.mark.parametrize(
    ("name", "line", "contract"),
    [
        ("domain/errors.py", "import asyncio\n", "the core has no clock"),
        ("domain/errors.py", "import service.flow.queue\n", "rooms import downwards only"),
        ("cellar/__init__.py", '"""A room without a place."""\n', "rooms import downwards only"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path, name, line, contract):
    shutil.copytree(ROOT / "service", tmp_path / "service", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    path = tmp_path / "service" / name
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(line)
    (report,) = checks.check_imports(tmp_path)
    assert contract in report
