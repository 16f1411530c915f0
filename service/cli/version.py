"""``sluice version``: which version this is, and in which form."""

import typer

from service.settings.release import read_form, read_version


def show_version() -> None:
    """Print the version, and whether the core runs as machine code (compiled) or as written (interpreted)."""
    typer.echo(f"{read_version()} ({read_form()})")
