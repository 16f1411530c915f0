"""``sluice serve``: runs one gateway in the foreground."""

import os

import typer

from service.cli.options import FileOption, choose_file, fail, say, tell_faults
from service.main import run
from service.settings.fault import SettingsRefusedError


def serve(config: FileOption = None) -> None:
    """Run one gateway until SIGTERM or Ctrl-C, then leave in order; a second signal leaves at once. SIGHUP reloads.

    Example:  sluice serve -c sluice.yaml

    The environment carries secrets only: SLUICE_ADMIN_TOKEN (made at start if absent) and SLUICE_CACHE_SALT (the same
    on every replica; made at start if absent).
    """
    path = choose_file(config)
    try:
        code = run(path, os.environ, say)
    except SettingsRefusedError as refused:
        tell_faults(path, refused)
    except OSError as error:
        fail(str(error))
    raise typer.Exit(code)
