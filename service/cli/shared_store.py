"""What commands need of the shared store: the plan that names it, its records, and plain words when it fails."""

import asyncio
import os
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from service.cli.options import BAD_INPUT, choose_file, fail, tell_faults
from service.domain.condition import StoreError
from service.settings.build import Plan, load_plan
from service.settings.fault import SettingsRefusedError
from service.store.hub import Store

T = TypeVar("T")


def load_chosen_plan(config: Path | None) -> Plan:
    """The plan of the file that was chosen; exits 2 with every fault of it."""
    path = choose_file(config)
    try:
        return load_plan(path, os.environ, b"")
    except SettingsRefusedError as refused:
        tell_faults(path, refused)


def read_store(plan: Plan) -> Mapping[str, bytes | None]:
    """All records by name; none without a store. Exits 1 if it does not answer."""
    if plan.redis is None:
        return {}
    return _ask(_read(plan))


def write_store(plan: Plan, records: Mapping[str, str | None]) -> None:
    """Put or remove records; exits 2 without a store, 1 if it does not answer."""
    if plan.redis is None:
        fail("state: memory keeps no tenants and keys; name a store (state: redis://HOST:6379/0), or edit the file",
             BAD_INPUT)  # fmt: skip
    _ask(_write(plan, records))


def _ask(call: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(call)
    except StoreError as error:
        fail(f"the store does not do it, {error}")


async def _read(plan: Plan) -> Mapping[str, bytes | None]:
    assert plan.redis is not None  # noqa: S101 - asked before
    store = Store(plan.redis, patient=True)
    try:
        changes = await store.directory.fetch("", 0)
    finally:
        await store.hang_up()
    return {} if changes is None else dict(changes.records)


async def _write(plan: Plan, records: Mapping[str, str | None]) -> None:
    assert plan.redis is not None  # noqa: S101 - asked before
    store = Store(plan.redis, patient=True)
    try:
        await store.directory.write(records)
    finally:
        await store.hang_up()
