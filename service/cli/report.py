"""``sluice report``: the SLA report of a month, from the ledger."""

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from service.cli.options import BAD_INPUT, FAILED, FileOption, choose_file, fail, say, tell_faults
from service.ledger.database import is_ledger, open_database, open_snapshot
from service.ledger.location import LedgerUrlError
from service.ledger.page import render_html
from service.ledger.query import span_of
from service.ledger.render import render_csv, render_json, render_text
from service.ledger.report import build_report
from service.ledger.verify import verify as verify_ledger
from service.runtime.clock import MonotonicClock
from service.settings.build import load_settings
from service.settings.fault import SettingsRefusedError
from service.settings.load import read_file

DEFAULT_LEDGER = "sqlite:///var/ledger.db"


class Format(StrEnum):
    """How a report is written."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"
    CSV = "csv"


def report(
    month: Annotated[str, typer.Option(help="Calendar month in UTC, as 2026-11.")],
    tenant: Annotated[str | None, typer.Option(help="Only this tenant; else all of them.")] = None,
    form: Annotated[Format, typer.Option("--format", help="How it is written.")] = Format.TEXT,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; else standard output.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="First look whether any entry was altered or is missing.")
    ] = False,
    ledger: Annotated[
        str | None, typer.Option(help=f"URL of the database; else the configuration's, else {DEFAULT_LEDGER}.")
    ] = None,
    config: FileOption = None,
) -> None:
    """Availability, uptime, attainment, credits and evidence, per tenant and tier.

    Examples:  sluice report --month 2026-11
               sluice report --month 2026-11 --tenant acme --format html -o acme.html
               sluice report --month 2026-11 --verify --ledger postgresql://sluice@db/sluice
    """
    try:
        span_of(month)
    except ValueError:
        fail(f"--month {month!r} is not a month such as 2026-11", BAD_INPUT)
    try:
        engine = open_database(_choose_ledger(ledger, config), read_only=True)
    except LedgerUrlError as error:
        fail(f"ledger: {error}", BAD_INPUT)
    try:
        with open_snapshot(engine) as connection:
            if not is_ledger(connection):
                fail("ledger: no gateway has written to this database yet", BAD_INPUT)
            sound = not verify or _verify(connection)
            text = _build(connection, month, tenant, form)
    except DBAPIError as error:
        fail(f"ledger: {error.orig}")
    finally:
        engine.dispose()
    if output is None:
        sys.stdout.write(text)
    else:
        output.write_text(text)
        say(f"written: {output}")
    if not sound:
        raise typer.Exit(FAILED)


def _choose_ledger(given: str | None, config: Path | None) -> str:
    if given is not None:
        return given
    if config is None:
        return DEFAULT_LEDGER
    path = choose_file(config)
    try:
        settings = load_settings(read_file(path), None)
    except SettingsRefusedError as refused:
        tell_faults(path, refused)
    if settings.ledger is None:
        fail(f"{path} keeps no ledger", BAD_INPUT)
    return settings.ledger


def _build(connection: Connection, month: str, tenant: str | None, form: Format) -> str:
    with _progress("adding up") as tick:
        built = build_report(connection, month, tenant, MonotonicClock().wall(), tick, _hash_sources(Path("slo")))
    match form:
        case Format.TEXT:
            return render_text(built)
        case Format.JSON:
            return render_json(built)
        case Format.HTML:
            return render_html(built)
        case Format.CSV:
            return render_csv(built)


def _hash_sources(folder: Path) -> dict[str, str]:
    """Of objectives and rules, where the report is made beside them."""
    hashes = {}
    for name in ("objectives", "rules"):
        files = sorted((folder / name).rglob("*.yaml"))
        if files:
            digest = hashlib.sha256()
            for file in files:
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
            hashes[name] = digest.hexdigest()
    return hashes


def _verify(connection: Connection) -> bool:
    with _progress("verifying") as tick:
        found = verify_ledger(connection, tick)
    for fault in found.faults:
        say(f"  {fault}")
    if found.more:
        say(f"  and {found.more} more")
    count = len(found.faults) + found.more
    say(f"verified: {found.entries} entries of {found.chains} chains, {count} faults")
    return count == 0


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
