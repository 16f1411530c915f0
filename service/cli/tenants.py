"""``sluice tenants``: puts tenants into the shared store, and lists them."""

import json
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from service.cli.options import BAD_INPUT, FileOption, fail, say
from service.cli.shared_store import load_chosen_plan, read_store, write_store
from service.domain.record import TENANT
from service.settings.fault import SettingsRefusedError
from service.settings.load import parse_tree, read_file
from service.settings.records import write_tenant
from service.settings.sold import TenantSettings

app = typer.Typer(name="tenants", no_args_is_help=True, help="Tenants of the shared store, changed while running.")


@app.callback()
def tenants() -> None:
    """Tenants of the shared store, changed while running."""


@app.command()
def put(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML with 'tenants:', without keys.")],
    config: FileOption = None,
) -> None:
    """Put the tenants of FILE into the store, each in the place of what was there by its id; in force within 2 s.

    Example:  sluice tenants put new-tenants.yaml -c sluice.yaml
    """
    plan = load_chosen_plan(config)
    records: dict[str, str | None] = {}
    faults = []
    written = {tenant.id for tenant in plan.settings.tenants}
    try:
        tree, _, _ = parse_tree(read_file(file))
    except SettingsRefusedError as refused:
        fail(str(refused), BAD_INPUT)
    for index, given in enumerate(tree.get("tenants") or ()):
        path = f"tenants[{index}]"
        try:
            tenant = TenantSettings.model_validate(given)
        except ValidationError as error:
            faults += [f"{path}.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
            continue
        if tenant.tier not in plan.settings.tiers:
            faults.append(f"{path}.tier: there is no tier {tenant.tier!r}")
        if tenant.keys:
            faults.append(f"{path}.keys: stored keys are made by 'sluice keys new --tenant {tenant.id}'")
        if tenant.id in written:
            faults.append(f"{path}.id: {tenant.id!r} stands in the configuration, which would win")
        records.update([write_tenant(tenant)])
    if faults or not records:
        for fault in faults or ["tenants: there are none"]:
            say(f"{file}: {fault}")
        raise typer.Exit(BAD_INPUT)
    write_store(plan, records)
    print(f"{len(records)} tenants stored; in force on every gateway within 2 s")


@app.command()
def remove(tenant: str, config: FileOption = None) -> None:
    """Remove a tenant from the store; its keys mean nothing from then on.

    Example:  sluice tenants remove acme -c sluice.yaml
    """
    plan = load_chosen_plan(config)
    if TENANT + tenant not in read_store(plan):
        fail(f"the store has no tenant {tenant!r}", BAD_INPUT)
    write_store(plan, {TENANT + tenant: None})
    print(f"{tenant} removed; in force on every gateway within 2 s")


@app.command("list")
def list_tenants(
    config: FileOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a script.")] = False,
) -> None:
    """List tenants of the file and of the store.

    Example:  sluice tenants list -c sluice.yaml
    """
    plan = load_chosen_plan(config)
    texts = read_store(plan)
    rows = [
        {"source": "file", **tenant.model_dump(mode="json", exclude={"keys"}, exclude_defaults=True)}
        for tenant in plan.settings.tenants
    ]
    rows += [
        {"source": "store", **json.loads(text)}
        for name, text in sorted(texts.items())
        if name.startswith(TENANT) and text is not None
    ]
    if as_json:
        print(json.dumps({"tenants": rows}))
        return
    for row in rows:
        contract = ", ".join(f"{name} {limit}" for name, limit in row.get("contract", {}).items())
        state = "suspended" if row.get("suspended") else "good"
        print(f"{row['id']:<24}{row['tier']:<12}{row['source']:<7}{state:<11}{contract}")
