"""``sluice migrate``: brings a ledger's tables to the present form, before gateways of a new version start."""

from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.exc import DBAPIError

from service.cli.options import BAD_INPUT, FileOption, choose_file, fail, tell_faults
from service.ledger.database import migrate as migrate_tables
from service.ledger.database import open_database
from service.ledger.location import LedgerUrlError
from service.settings.build import load_settings
from service.settings.fault import SettingsRefusedError
from service.settings.load import read_file


def migrate(
    ledger: Annotated[str | None, typer.Option(help="URL of the database; else the configuration's.")] = None,
    config: FileOption = None,
) -> None:
    """Bring the ledger's tables to the present form; nothing happens if they are in it. Forward only.

    Gateways do the same when they start, one at a time; as a job before an upgrade it fails early and nobody waits.

    Example:  sluice migrate --ledger postgresql://sluice@db/sluice
    """
    url = ledger or _find_url(config)
    if url is None:
        print("no ledger is kept: nothing to do")
        return
    try:
        with open_database(url).begin() as connection:
            migrate_tables(connection)
    except LedgerUrlError as error:
        fail(f"--ledger {error}", BAD_INPUT)
    except DBAPIError as error:
        fail(f"the ledger cannot be brought to the present form: {str(error.orig).strip()}")
    print("the ledger's tables are in the present form")


def _find_url(config: Path | None) -> str | None:
    path = choose_file(config)
    try:
        return load_settings(read_file(path), None).ledger
    except SettingsRefusedError as refused:
        tell_faults(path, refused)
