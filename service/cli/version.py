"""``sluice version``: which version this is."""

import typer

from service.settings.release import read_version


def show_version() -> None:
    """Print the version."""
    typer.echo(read_version())
