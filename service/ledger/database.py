"""Opens the database of a ledger, by URL, and brings its tables to the present form."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text

from service.ledger.location import LedgerUrlError, check_url
from service.ledger.tables import CHAINS

_MIGRATIONS = Path(__file__).parent / "migrations"
_CONNECT_S = 3
_STATEMENT_MS = 60_000
_MIGRATION_LOCK = 7_310_213
"""Any number that no other program takes a PostgreSQL advisory lock by."""


def open_database(url: str, read_only: bool = False) -> Engine:
    """An engine with one connection. A database file and its folder are made if they are not there, unless
    ``read_only``.

    Raises:
        LedgerUrlError: as :func:`check_url`, or there is no such file to read.
    """
    check_url(url)
    parsed = make_url(re.sub("^postgres://", "postgresql://", url))
    if parsed.get_backend_name() == "postgresql":
        options = f"-c statement_timeout={_STATEMENT_MS}"
        arguments = {"connect_timeout": _CONNECT_S, "tcp_user_timeout": 10_000, "options": options}
        return create_engine(parsed.set(drivername="postgresql+psycopg"), pool_size=1, connect_args=arguments)
    file = Path(parsed.database or "")
    if read_only and not file.exists():
        raise LedgerUrlError(f"there is no ledger at {file}")
    file.parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(parsed, pool_size=1, connect_args={"timeout": 5.0})
    event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: object, _: object) -> None:
    """Readers beside a writer, and a commit that outlives a power cut: the spool lets go of what was committed."""
    execute = connection.execute  # type: ignore[attr-defined]  # sqlite3's, which SQLAlchemy gives as object
    execute("PRAGMA journal_mode=WAL")
    execute("PRAGMA synchronous=FULL")
    execute("PRAGMA cache_size=-32000")


def migrate(connection: Connection) -> None:
    """Bring the fixed tables to the present form; nothing happens if they are in it. One process at a time."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _MIGRATION_LOCK})
    else:  # sqlite3 begins nothing by itself before it makes a table: a death in between would leave half of them
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


@contextmanager
def open_snapshot(engine: Engine) -> Iterator[Connection]:
    """A connection that goes on seeing the database as it was, whatever a clerk writes meanwhile."""
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        else:
            connection.exec_driver_sql("BEGIN")
        yield connection


def is_ledger(connection: Connection) -> bool:
    """Whether a gateway has ever kept its record there."""
    return inspect(connection).has_table(CHAINS.name)
