"""Where a ledger may be kept, by URL; says so without the database library, which a gateway never loads."""

import importlib.util
import re

_POSTGRES = re.compile(r"postgres(ql)?://[^/\s]*/[^/?\s]+(\?\S*)?")


class LedgerUrlError(ValueError):
    """The URL names no database that a ledger can be kept in."""


def check_url(url: str) -> None:
    """Whether a ledger can be kept there, as far as the URL tells.

    Raises:
        LedgerUrlError: it is neither SQLite nor PostgreSQL, or what PostgreSQL needs is not installed.
    """
    kind, colon, _ = url.partition("://")
    if kind == "sqlite" and colon:
        if not url.removeprefix("sqlite:///") or not url.startswith("sqlite:///"):
            raise LedgerUrlError("names no file: write sqlite:///var/ledger.db")
    elif kind in ("postgresql", "postgres") and colon:
        if _POSTGRES.fullmatch(url) is None:
            raise LedgerUrlError("names no database: write postgresql://USER:PASSWORD@HOST/NAME")
        if importlib.util.find_spec("psycopg") is None:
            raise LedgerUrlError("needs the package psycopg: pip install 'sluice[postgres]'")
    else:
        raise LedgerUrlError(
            "is no database that is known: write sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME"
        )
