"""``sluice simulate``: runs the simulator that stands beside the service in its repository."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

BAD_INPUT = 2
CONTEXT_SETTINGS = {"ignore_unknown_options": True, "help_option_names": []}
"""For the registration of the command: every argument, ``--help`` too, belongs to the simulator."""

ArgumentsArgument = Annotated[list[str] | None, typer.Argument(metavar="SCENARIO [OPTION]...")]


def find_repository(start: Path) -> Path | None:
    """The folder in which ``loadtests/sim`` lies, next to the package ``service``."""
    return start if (start / "loadtests" / "sim" / "run.py").is_file() else None


def simulate(arguments: ArgumentsArgument = None) -> None:
    """Run the policy in virtual time against emulated workers: scenarios, baselines, bounds.

    The simulator is part of the repository, not of the installed package.
    """
    beside = Path(__file__).parents[2]
    root = find_repository(beside) or find_repository(Path.cwd())
    if root is None:
        typer.echo(
            f"simulate: loadtests/sim is neither beside the package ({beside}) nor in this folder; "
            "run it in a clone of the repository",
            err=True,
        )
        raise typer.Exit(BAD_INPUT)
    command = [sys.executable, "-m", "loadtests.sim.run", *(arguments or ["--help"])]
    raise typer.Exit(subprocess.run(command, cwd=root, check=False).returncode)  # noqa: S603 - our own module
