"""``sluice emulate``: runs one emulated worker in the foreground."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer

from service.emulator.config import ConfigFault, EmulatorConfig, describe_options
from service.emulator.server import run


def emulate(**options: object) -> None:
    """Run one emulated vLLM worker: its wire, its metrics, its queueing, and faults on demand.

    Faults can be set from the start (--fault), while running (POST /emulator/faults) and per request (header
    x-emulator-fault). GET /emulator/requests shows what arrived. SIGTERM behaves as vLLM's.
    """
    config = EmulatorConfig(**options)  # type: ignore[arg-type]  # the signature below gives each option its type
    try:
        config.check()
    except ConfigFault as error:
        typer.echo(f"emulate: {error}", err=True)
        raise typer.Exit(2) from error
    run(config)


def _build_signature() -> inspect.Signature:
    """One parameter per field of the config, so that the options live in one place."""
    parameters = []
    for name, kind, default, text in describe_options():
        flag = "--" + name.replace("_", "-")
        annotation = Annotated.__class_getitem__((kind, typer.Option(flag, help=text)))  # type: ignore[attr-defined]
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return inspect.Signature(parameters)


emulate.__signature__ = _build_signature()  # type: ignore[attr-defined]
emulate.__annotations__ = {name: parameter.annotation for name, parameter in emulate.__signature__.parameters.items()}  # type: ignore[attr-defined]
