"""Reads public request traces where they lie; they are never copied into the project.

The folder is that of ``SLUICE_TRACES``, else ``shared/traces`` in any folder above the repository.
"""

import csv
import json
import os
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

BLOCK_TOKENS = 128
MOONCAKE_BLOCK_TOKENS = 512
FILES = {
    "azure-conv": "azure_llm_2023_conv.csv",
    "azure-code": "azure_llm_2023_code.csv",
    "mooncake": "mooncake_conversation.jsonl",
}


class TraceMissingError(Exception):
    """The trace is not on this machine; the message says where it was looked for."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace: seconds since its begin, sizes, and the hashes of its prompt's full 128-token blocks."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    hashes: tuple[int, ...] = ()


def find_folder() -> Path | None:
    """The folder with the traces, or ``None``."""
    named = os.environ.get("SLUICE_TRACES")
    if named:
        return Path(named) if Path(named).is_dir() else None
    for folder in Path(__file__).resolve().parents[2:]:
        if (folder / "shared" / "traces").is_dir():
            return folder / "shared" / "traces"
    return None


@cache
def load_trace(name: str) -> tuple[Row, ...]:
    """The rows of a trace in order of time.

    Raises:
        TraceMissingError: there is no folder, or the file is not in it.
    """
    folder = find_folder()
    if folder is None:
        raise TraceMissingError("no folder with traces: set SLUICE_TRACES, or put it at ../shared/traces")
    path = folder / FILES[name]
    if not path.is_file():
        raise TraceMissingError(f"trace {name}: {path} does not exist")
    rows = _read_jsonl(path) if path.suffix == ".jsonl" else _read_csv(path)
    return tuple(sorted(rows, key=lambda row: row.at_s))


def _read_csv(path: Path) -> list[Row]:
    rows: list[Row] = []
    begun: datetime | None = None
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            moment = datetime.fromisoformat(line["TIMESTAMP"][:26])
            begun = begun or moment
            at_s = (moment - begun).total_seconds()
            rows.append(Row(at_s, max(1, int(line["ContextTokens"])), max(1, int(line["GeneratedTokens"]))))
    return rows


def _read_jsonl(path: Path) -> list[Row]:
    rows: list[Row] = []
    each = MOONCAKE_BLOCK_TOKENS // BLOCK_TOKENS
    with path.open() as file:
        for text in file:
            line = json.loads(text)
            blocks = [block * each + part for block in line["hash_ids"] for part in range(each)]
            prompt = max(1, int(line["input_length"]))
            hashes = tuple(blocks[: prompt // BLOCK_TOKENS])
            rows.append(Row(line["timestamp"] / 1000.0, prompt, max(1, int(line["output_length"])), hashes))
    return rows
