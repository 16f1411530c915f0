"""What several commands share: the file option, the exit codes, and how faults are told."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from service.settings.build import CONFIG_FILE
from service.settings.fault import SettingsRefusedError

FAILED, BAD_INPUT = 1, 2

FileOption = Annotated[Path | None, typer.Option("--config", "-c", help=f"Configuration file; else ${CONFIG_FILE}.")]


def choose_file(given: Path | None) -> Path:
    """The file named on the command line or in the environment; exits 2 if neither names one."""
    if given is not None:
        return given
    named = os.environ.get(CONFIG_FILE)
    if not named:
        fail(f"no configuration: name the file with -c FILE or in {CONFIG_FILE}", BAD_INPUT)
    return Path(named)


def tell_faults(path: Path, refused: SettingsRefusedError) -> NoReturn:
    """Print every fault, exit 2."""
    count = len(refused.faults)
    say(f"{path}: {count} fault{'s' if count > 1 else ''}")
    for fault in refused.faults:
        say(f"  {fault}")
    raise typer.Exit(BAD_INPUT)


def say(line: str) -> None:
    """Tell the operator, beside the command's output."""
    print(line, file=sys.stderr, flush=True)


def fail(line: str, code: int = FAILED) -> NoReturn:
    """Say why, exit."""
    say(f"sluice: {line}")
    raise typer.Exit(code)
