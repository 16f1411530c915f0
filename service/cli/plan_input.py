"""Reads what was asked of a pool: from a trace file, or from a month of the ledger."""

import csv
import datetime
import json
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Connection, select

from service.ledger.tables import entries_table
from service.slo.planning import Asked

_MILLION = 1_000_000.0


class InputError(Exception):
    """A line that is no request, told with what is expected."""


def read_trace(path: Path) -> Iterator[Asked]:
    """Requests of a file: ``.csv`` with TIMESTAMP, ContextTokens, GeneratedTokens (Azure's traces), or ``.jsonl`` with
    timestamp in milliseconds, input_length, output_length (Mooncake's). A column ``rank`` names the tier, else 0.

    Raises:
        InputError: the file is neither, or a line of it is wrong.
    """
    if path.suffix not in (".csv", ".jsonl"):
        raise InputError(f"{path}: a trace is a .csv or a .jsonl file")
    with path.open(newline="") as lines:
        rows = csv.DictReader(lines) if path.suffix == ".csv" else map(json.loads, lines)
        number = 0
        try:
            for number, row in enumerate(rows, 1):  # noqa: B007 - told when the next one fails
                if path.suffix == ".csv":
                    at = datetime.datetime.fromisoformat(row["TIMESTAMP"][:26]).replace(tzinfo=datetime.UTC).timestamp()
                    sizes = float(row["ContextTokens"]), float(row["GeneratedTokens"])
                else:
                    at = float(row["timestamp"]) / 1000.0
                    sizes = float(row["input_length"]), float(row["output_length"])
                yield Asked(at, int(row.get("rank") or 0), *sizes)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{path}, request {number + (number == 0)}: {error!r} is missing or wrong") from error


def read_ledger(connection: Connection, month: str, ranks: dict[str, int]) -> Iterator[Asked]:
    """Generating requests of a month in order, of tiers that ``ranks`` names. Sizes that nobody learned count as 0."""
    table = entries_table(month)
    columns = (table.c.arrived_us, table.c.tier, table.c.prompt_tokens, table.c.cached_tokens, table.c.output_tokens)
    for at_us, tier, prompt, cached, output in connection.execution_options(yield_per=10_000).execute(
        select(*columns).order_by(table.c.arrived_us)
    ):
        if tier in ranks:
            yield Asked(at_us / _MILLION, ranks[tier], max((prompt or 0) - (cached or 0), 0), output or 0)
