"""Puts the commands together."""

from importlib import import_module

import typer

_TABLE = {
    "up": ("up", "up"),
    "serve": ("serve", "serve"),
    "scaler": ("scaler", "scaler"),
    "plan": ("plan", "plan"),
    "check": ("check", "check"),
    "keys": ("keys", "app"),
    "tenants": ("tenants", "app"),
    "contracts": ("contracts", "app"),
    "worker": ("worker_drain", "app"),
    "bench": ("bench", "app"),
    "slo": ("slo", "app"),
    "emulate": ("emulate", "emulate"),
    "drain": ("drain", "drain"),
    "prober": ("prober", "prober"),
    "explain": ("explain", "explain"),
    "replay": ("replay", "replay"),
    "report": ("report", "report"),
    "migrate": ("migrate", "migrate"),
    "version": ("version", "show_version"),
}
"""Command, and in which module of this package it is called what."""


def build_app(wanted: str | None = None) -> typer.Typer:
    """The command line; with the name of a command that is ``wanted`` only that one, so that a gateway does not carry
    what reports and databases need (some 30 MB, half a second). Any other name gives them all."""
    app = typer.Typer(
        name="sluice",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        help="Sluice: an OpenAI-compatible inference gateway in front of vLLM workers. "
        "Try 'sluice up' first. Exit codes: 0 ok, 1 failed, 2 bad input.",
    )
    app.callback()(_stand_before_commands)
    for name in [wanted] if wanted in _TABLE else _TABLE:
        module, attribute = _TABLE[str(name)]
        command = getattr(import_module(f"service.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _stand_before_commands() -> None:
    """Sluice: an OpenAI-compatible inference gateway in front of vLLM workers. Try 'sluice up' first. Exit codes: 0 ok,
    1 failed, 2 bad input."""
