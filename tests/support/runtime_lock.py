"""Cuts the image's locks out of ``requirements.lock``: ``python -m tests.support.runtime_lock`` writes both.

``deploy/runtime.lock`` holds what the service imports, PostgreSQL's driver included, ``deploy/build.lock`` what builds
its wheel and compiles its core: same versions, same hashes, nothing of the tests' own packages.
"""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "pyproject.toml"
LOCK = ROOT / "requirements.lock"
SERIES = ("3.11", "3.12", "3.13")
RUNTIME, BUILD = ROOT / "deploy" / "runtime.lock", ROOT / "deploy" / "build.lock"


def read_blocks() -> dict[str, str]:
    """The lock's text of each package."""
    blocks = re.findall(r"^(?:[A-Za-z0-9._-]+==.*\n)(?:    .*\n)*", LOCK.read_text(), re.MULTILINE)
    return {canonicalize_name(re.split(r"[=;\s]", block, maxsplit=1)[0]): block for block in blocks}


def close(wanted: list[str]) -> set[str]:
    """The packages and all that they need on Linux, with any Python we support, as their installed metadata says."""
    here = {key: str(value) for key, value in default_environment().items()}
    pythons = [
        {**here, "python_version": series, "python_full_version": f"{series}.{patch}"}
        for series in SERIES
        for patch in (0, 9)
    ]
    open_, closed = [Requirement(each) for each in wanted], set[tuple[str, frozenset[str]]]()
    while open_:
        requirement = open_.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in closed:
            continue
        closed.add((name, extras))
        for needed in map(Requirement, _list_requirements(name)):
            sides = ({**python, "extra": extra} for python in pythons for extra in ("", *extras))
            if needed.marker is None or any(needed.marker.evaluate(side) for side in sides):
                open_.append(needed)
    return {name for name, _ in closed}


def _list_requirements(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError:
        return []  # for another Python than this one; such backports need nothing themselves


def render(wanted: list[str]) -> str:
    """The blocks of the closure, in the lock's order."""
    names = close(wanted)
    blocks = read_blocks()
    if missing := names - set(blocks):
        raise LookupError(f"not in {LOCK.name}: {', '.join(sorted(missing))}")
    return "".join(block for name, block in blocks.items() if name in names)


def render_locks() -> dict[Path, str]:
    """Each file's text."""
    project = tomllib.loads(PROJECT.read_text())
    extras = project["project"]["optional-dependencies"]
    runtime = project["project"]["dependencies"] + extras["postgres"]
    hook = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
    return {RUNTIME: render(runtime), BUILD: render(project["build-system"]["requires"] + hook["dependencies"])}


if __name__ == "__main__":
    for path, text in render_locks().items():
        path.write_text(text)
