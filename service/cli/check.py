"""``sluice check``: is a configuration usable?"""

import json
import os
from typing import Annotated

import typer

from service.cli.options import BAD_INPUT, FileOption, choose_file, tell_faults
from service.settings.build import load_plan
from service.settings.fault import SettingsRefusedError


def check(
    config: FileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a script.")] = False,
) -> None:
    """Check a configuration file: all faults at once, with their paths and cures. Exit code 2 if there are any.

    Example:  sluice check -c sluice.yaml
    """
    path = choose_file(config)
    try:
        plan = load_plan(path, os.environ, b"")
    except SettingsRefusedError as refused:
        if not as_json:
            tell_faults(path, refused)
        faults = [
            {"path": fault.path, "line": fault.line, "message": fault.message, "cure": fault.cure}
            for fault in refused.faults
        ]
        print(json.dumps({"faults": faults}))
        raise typer.Exit(BAD_INPUT) from None
    settings = plan.settings
    if as_json:
        print(json.dumps({"faults": []}))
    else:
        print(f"{path}: fine ({settings.model}, {len(settings.tiers)} tiers, {len(settings.tenants)} tenants)")
