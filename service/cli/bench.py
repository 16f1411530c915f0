"""``sluice bench``: runs the measurements that stand beside the service in its repository."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import BAD_INPUT, fail
from service.cli.simulate import find_repository

app = typer.Typer(
    name="bench",
    no_args_is_help=True,
    help="Measure: what the gateway costs, which promises it keeps under overload, whether the emulator can be "
    "trusted. Every bench says with --help what it does, how long it takes and where its report goes. The benches are "
    "part of the repository, not of the installed package.",
)

_PASS_ON = {"ignore_unknown_options": True, "help_option_names": []}
"""Every argument, ``--help`` too, belongs to the bench."""

ArgumentsArgument = Annotated[list[str] | None, typer.Argument(metavar="[OPTION]...")]


def run_bench(name: str, module: str, arguments: Sequence[str]) -> None:
    """Run a module of the repository that is beside the package or in this folder; exit with its code."""
    beside = Path(__file__).parents[2]
    root = find_repository(beside) or find_repository(Path.cwd())
    if root is None:
        fail(
            f"bench {name}: loadtests is neither beside the package ({beside}) nor in this folder; run it in a clone "
            "of the repository",
            BAD_INPUT,
        )
    # Not there but here: files named in the arguments are the caller's.
    found = {"PYTHONPATH": os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))}
    done = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", module, *arguments], env={**os.environ, **found}, check=False
    )
    raise typer.Exit(done.returncode)


def _add(name: str, module: str, about: str) -> None:
    def bench(arguments: ArgumentsArgument = None) -> None:
        run_bench(name, module, arguments or [])

    command: Callable[[Callable[..., None]], Callable[..., None]] = app.command(
        name, help=about, context_settings=_PASS_ON
    )
    command(bench)


_add("overhead", "loadtests.live.overhead", "CPU of the gateway per request and per chunk, beside its peers (minutes).")
_add("overload", "loadtests.live.overload", "Promises kept at and above capacity, beside the peers (half an hour).")
_add(
    "calibrate",
    "loadtests.calibration.run",
    "Fit the emulator to a real vLLM, and say how far its predictions are off (four minutes).",
)
