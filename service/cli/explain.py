"""``sluice explain``: why was this request treated as it was?"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.admin import ADMIN_URL, ask_admin
from service.cli.options import BAD_INPUT, fail
from service.domain.event import RequestArrived
from service.domain.units import RequestId
from service.flow.config import Reconfigured
from service.runtime.decisions import names_request
from service.runtime.journal import JournalError, Record, decode_header, decode_record, hash_config
from service.runtime.words import Step
from service.runtime.words import explain as put_in_words


@dataclass(frozen=True, slots=True)
class _Found:
    """What is known of one request. ``wall_offset_s`` makes moments of the journal seconds since 1970."""

    request_id: RequestId
    client_request_id: str | None
    config_hash: str
    wall_offset_s: float | None
    records: Sequence[Record]
    ending: dict[str, Any] | None


def explain(
    request_id: Annotated[str, typer.Argument(help="As the header x-request-id of the answer said.")],
    admin: Annotated[str, typer.Option("--admin", help="URL of a gateway's admin port.")] = ADMIN_URL,
    journal: Annotated[Path | None, typer.Option("--journal", help="Look in this journal file instead.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a script.")] = False,
) -> None:
    """Say why a request waited, went where it went, or was refused: what was known and what followed.

    Examples:  sluice explain 5f3a9c01-0000002a
               sluice explain 5f3a9c01-0000002a --journal /var/lib/sluice/journal.jsonl
    """
    found = _find_at_gateway(admin, request_id) if journal is None else _find_in_file(journal, request_id)
    steps = put_in_words(list(found.records), found.request_id)
    began_at = _find_beginning(found)
    if as_json:
        print(json.dumps(_build_json(found, steps, began_at)))
        return
    theirs = "" if found.client_request_id is None else f" (the client calls it {found.client_request_id})"
    print(f"request {found.request_id}{theirs}, decided under config {found.config_hash}")
    if steps and found.wall_offset_s is not None:
        print(f"arrived {_name_moment(began_at + found.wall_offset_s)}; moments below count from there")
    for step in steps:
        print(f"  +{max(step.at - began_at, 0.0):8.3f} s  {step.text}")
    if found.records and not isinstance(found.records[0][1], RequestArrived):
        print("  (what came before is no longer remembered)")
    if found.ending is not None:
        print(f"  {_tell_ending(found.ending)}")


def _find_at_gateway(admin: str, request_id: str) -> _Found:
    body = ask_admin(admin.rstrip("/"), "/admin/v1/decisions", {"request_id": request_id})
    records = [decode_record(json.dumps(one).encode() + b"\n") for one in body["decisions"]]
    used = body["decisions"][-1]["config_hash"] if body["decisions"] else body["config_hash"]
    ending = body["ending"]
    theirs = body.get("client_request_id") or (ending or {}).get("client_request_id")
    return _Found(RequestId(body["request_id"]), theirs, used, body["wall_offset_s"], records, ending)


def _find_in_file(path: Path, request_id: str) -> _Found:
    try:
        with path.open("rb") as lines:
            found = _search(lines, RequestId(request_id))
    except OSError as error:
        fail(f"{path}: {error.strerror}", BAD_INPUT)
    except JournalError as error:
        fail(f"{path}: {error}", BAD_INPUT)
    if not found.records:
        fail(
            f"{path} has nothing of {request_id[:128]!r}. A journal knows a request by the gateway's own id (request_id"
            " in its logs), not by the client's; what was refused before admission is in the logs only"
        )
    return found


def _search(lines: Iterable[bytes], request_id: RequestId) -> _Found:
    """Only lines that could matter are read closely; one cut off at the end is passed over."""
    reader = iter(lines)
    header = decode_header(next(reader, b""))
    config_hash = used = hash_config(header.config)
    mark = json.dumps(request_id).encode()
    records: list[Record] = []
    for line in reader:
        if not line.endswith(b"\n") or not (mark in line or b'"Reconfigured"' in line):
            continue
        record = decode_record(line)
        if isinstance(record[1], Reconfigured):
            config_hash = hash_config(record[1].config)
        if names_request(record, request_id):
            records.append(record)
            used = config_hash
    return _Found(request_id, None, used, header.wall_offset_s, records, None)


def _find_beginning(found: _Found) -> float:
    if found.records:
        at, event, _ = found.records[0]
        return event.request.arrived_at if isinstance(event, RequestArrived) else at
    return 0.0 if found.ending is None else float(found.ending["arrived_at"])


def _tell_ending(ending: dict[str, Any]) -> str:
    parts = [f"outcome: {ending['outcome']}"]
    if ending["status"] is not None:
        parts.append(f"HTTP status {ending['status']}")
    if ending["fault"] not in (None, "none"):
        parts.append(
            {"client": "the client's doing", "capacity": "for want of capacity", "us": "our fault"}[ending["fault"]]
        )
    if ending["ttft_s"] is not None:
        parts.append(f"first token {ending['ttft_s']:.3f} s after arrival")
    if ending["settled_at"] is not None:
        parts.append(f"over after {ending['settled_at'] - ending['arrived_at']:.3f} s")
    return ", ".join(parts)


def _name_moment(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _build_json(found: _Found, steps: Sequence[Step], began_at: float) -> dict[str, Any]:
    offset_s = found.wall_offset_s
    return {
        "request_id": found.request_id,
        "client_request_id": found.client_request_id,
        "config_hash": found.config_hash,
        "arrived": None if offset_s is None else _name_moment(began_at + offset_s),
        "steps": [{"after_s": round(step.at - began_at, 6), "text": step.text} for step in steps],
        "ending": found.ending,
    }
