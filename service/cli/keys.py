"""``sluice keys``: makes, lists, revokes and rotates API keys."""

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from pydantic import ValidationError

from service.cli.options import BAD_INPUT, FileOption, fail
from service.cli.shared_store import load_chosen_plan, read_store, write_store
from service.domain.record import KEY, TENANT
from service.gateway.auth import KEY_PREFIX, new_key
from service.runtime.clock import MonotonicClock
from service.settings.build import Plan
from service.settings.records import KeyRecord, write_key

app = typer.Typer(name="keys", no_args_is_help=True, help="API keys. A key is shown once and stored hashed.")

SHOWN_CHARACTERS = 4
_LENGTHS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a script.")]
NameArgument = Annotated[
    str, typer.Argument(metavar="KEY", help="Prefix or id of the key, as 'sluice keys list' shows.")
]


@dataclass(frozen=True, slots=True)
class _Row:
    """One key, as it may be shown."""

    id: str
    prefix: str
    tenant: str
    source: str
    created: str
    expires: str
    state: str


def describe_key(key: str) -> dict[str, str]:
    """What a configuration keeps of ``key``."""
    digest = hashlib.sha256(key.encode()).hexdigest()
    return {"hash": f"sha256:{digest}", "prefix": key[: len(KEY_PREFIX) + SHOWN_CHARACTERS]}


@app.callback()
def keys() -> None:
    """API keys. A key is shown once and stored hashed."""


@app.command()
def new(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Whose it is: stored for all gateways.")] = None,
    expires: Annotated[str | None, typer.Option("--expires", help="After 30d, 12h; or at 2026-12-31.")] = None,
    config: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make one key and print it once. With --tenant it is put into the store that 'state' names; without, the line
    that belongs under a tenant's 'keys:' in the file is printed.

    Examples:  sluice keys new
               sluice keys new --tenant acme --expires 90d -c sluice.yaml
    """
    now = MonotonicClock().wall()
    ends_at = None if expires is None else read_end(expires, now)
    key = new_key()
    kept = describe_key(key)
    if tenant is not None:
        plan = load_chosen_plan(config)
        texts = read_store(plan)
        known = {written.id for written in plan.settings.tenants}
        if tenant not in known and TENANT + tenant not in texts:
            fail(f"there is no tenant {tenant!r}: add it to the file, or put it into the store", BAD_INPUT)
        record = _put(plan, key, tenant, now, ends_at)
        _tell_new(key, record, as_json)
        return
    if ends_at is not None:
        kept["expires"] = _show(ends_at)
    if as_json:
        print(json.dumps({"key": key, **kept}))
        return
    print(f"key, shown only now:   {key}")
    print("under the tenant:")
    print("    keys:")
    more = f", expires: {kept['expires']}" if ends_at is not None else ""
    print(f'      - {{hash: "{kept["hash"]}", prefix: "{kept["prefix"]}"{more}}}')


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")] = None,
    config: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """List keys by prefix, of the file and of the store.

    Example:  sluice keys list -c sluice.yaml
    """
    plan = load_chosen_plan(config)
    now = MonotonicClock().wall()
    rows = [*_written_rows(plan, now), *(_stored_row(record, now) for _, record in _stored(read_store(plan)))]
    rows = [row for row in rows if tenant is None or row.tenant == tenant]
    if as_json:
        print(json.dumps({"keys": [asdict(row) for row in rows]}))
        return
    print(f"{'id':<10}{'prefix':<16}{'tenant':<24}{'in':<7}{'expires':<22}state")
    for row in rows:
        print(f"{row.id:<10}{row.prefix:<16}{row.tenant:<24}{row.source:<7}{row.expires or '-':<22}{row.state}")


@app.command()
def revoke(key: NameArgument, config: FileOption = None, as_json: JsonOption = False) -> None:
    """Revoke a key of the store: no gateway takes it any more within two seconds.

    Example:  sluice keys revoke sk-sluice-Ab3d -c sluice.yaml
    """
    plan = load_chosen_plan(config)
    name, record = _find(plan, key)
    write_store(plan, {name: None})
    if as_json:
        print(json.dumps({"revoked": record.id, "prefix": record.prefix, "tenant": record.tenant}))
    else:
        print(f"revoked {record.prefix} of {record.tenant}; in force on every gateway within 2 s")


@app.command()
def rotate(
    key: NameArgument,
    grace: Annotated[str, typer.Option("--grace", help="How long the old key is good for: 0, 24h, 7d.")] = "24h",
    config: FileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make another key for the same tenant; the old one ends after the grace.

    A key that ends is followed by one that is good for as long, from now.

    Example:  sluice keys rotate sk-sluice-Ab3d --grace 7d -c sluice.yaml
    """
    now = MonotonicClock().wall()
    plan = load_chosen_plan(config)
    name, old = _find(plan, key)
    ends_at = now if grace == "0" else read_end(grace, now)
    made = new_key()
    good_s = None if old.expires_at is None else old.expires_at - old.created_at
    record = _put(plan, made, old.tenant, now, None if good_s is None else now + good_s)
    digest = bytes.fromhex(name.removeprefix(KEY))
    ending = old.model_copy(update={"expires_at": min(ends_at, old.expires_at or ends_at)})
    write_store(plan, {name: None} if grace == "0" else dict([write_key(digest, ending)]))
    _tell_new(made, record, as_json)


def read_end(text: str, now: float) -> float:
    """The moment that ``30d`` or ``2026-12-31`` means; exits 2 for anything else."""
    length = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if length is not None:
        return now + int(length.group(1)) * _LENGTHS[length.group(2)]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{text!r} is neither a length (30d, 12h, 15m) nor a moment (2026-12-31, 2026-12-31T12:00Z)", BAD_INPUT)
    ends_at = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    if ends_at <= now:
        fail(f"{text!r} has passed", BAD_INPUT)
    return ends_at


def _put(plan: Plan, key: str, tenant: str, now: float, ends_at: float | None) -> KeyRecord:
    record = KeyRecord(
        id=secrets.token_hex(4), tenant=tenant, prefix=describe_key(key)["prefix"], created_at=now, expires_at=ends_at
    )
    write_store(plan, dict([write_key(hashlib.sha256(key.encode()).digest(), record)]))
    return record


def _tell_new(key: str, record: KeyRecord, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"key": key, **record.model_dump()}))
        return
    print(f"key, shown only now:   {key}")
    ends = "" if record.expires_at is None else f", good until {_show(record.expires_at)}"
    print(f"stored for {record.tenant} as {record.id}{ends}; in force on every gateway within 2 s")


def _find(plan: Plan, wanted: str) -> tuple[str, KeyRecord]:
    """The one stored key that is named so; exits 2 if there is none, or several."""
    if not wanted.strip() or len(wanted) > len(KEY_PREFIX) + SHOWN_CHARACTERS:
        fail("name the key by its prefix or id, never by itself: see 'sluice keys list'", BAD_INPUT)
    found = [(name, record) for name, record in _stored(read_store(plan)) if wanted in (record.prefix, record.id)]
    if len(found) == 1:
        return found[0]
    why = f"there is no key {wanted!r}: see 'sluice keys list'"
    if found:
        ids = ", ".join(record.id for _, record in found)
        why = f"several keys begin with {wanted}: name one by its id ({ids})"
    elif any(row.prefix == wanted for row in _written_rows(plan, 0.0)):
        why = f"{wanted} stands in the file: remove its line there and reload"
    return fail(why, BAD_INPUT)


def _stored(texts: Mapping[str, bytes | None]) -> Iterator[tuple[str, KeyRecord]]:
    for name, text in sorted(texts.items()):
        if name.startswith(KEY) and text is not None:
            try:
                yield name, KeyRecord.model_validate_json(text)
            except ValidationError:
                continue  # whatever it is, no gateway takes it for a key


def _stored_row(record: KeyRecord, now: float) -> _Row:
    ends_at = record.expires_at
    return _Row(
        record.id, record.prefix, record.tenant, "store", _show(record.created_at), _show(ends_at), _judge(ends_at, now)
    )


def _written_rows(plan: Plan, now: float) -> Iterator[_Row]:
    for tenant in plan.settings.tenants:
        for key in tenant.keys:
            ends_at = None if key.expires is None else key.expires.timestamp()
            yield _Row("", key.prefix, tenant.id, "file", "", _show(ends_at), _judge(ends_at, now))


def _judge(ends_at: float | None, now: float) -> str:
    return "expired" if ends_at is not None and ends_at <= now else "good"


def _show(moment: float | None) -> str:
    return "" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
