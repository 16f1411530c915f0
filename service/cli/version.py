"""``sluice version``: which version this is."""

from importlib.metadata import PackageNotFoundError, version

import typer


def show_version() -> None:
    """Print the version."""
    try:
        typer.echo(version("sluice"))
    except PackageNotFoundError:
        typer.echo("not installed: running from a source tree")
