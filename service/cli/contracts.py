"""``sluice contracts``: can everything that is sold be kept?"""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from service.cli.admin import ask_admin
from service.cli.options import FAILED, FileOption
from service.cli.shared_store import load_chosen_plan, read_store
from service.settings.capacity import build_capacity, prove_plan, tell_proof
from service.settings.records import read_records

app = typer.Typer(name="contracts", no_args_is_help=True, help="What is sold, held against what there is.")


@app.callback()
def contracts() -> None:
    """What is sold, held against what there is."""


@app.command()
def check(
    config: FileOption = None,
    admin: Annotated[str | None, typer.Option("--admin", help="Take capacity as this gateway has measured it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a script.")] = False,
) -> None:
    """Prove that everything sold can be kept with one worker lost, in the file and in the store. Exit code 1 if it
    cannot: then the answer says by how many workers too much is sold.

    Examples:  sluice contracts check -c sluice.yaml
               sluice contracts check -c sluice.yaml --admin http://127.0.0.1:8081
    """
    plan = load_chosen_plan(config)
    measured, workers = None, 0
    if admin is not None:
        seen = ask_admin(admin, "/admin/v1/queues", {})
        measured, workers = seen["tokens_per_worker_minute"], seen["usable_workers"]
    stored = read_records(read_store(plan).items(), plan.settings.tiers)
    written = {tenant.tenant_id for tenant in plan.tenants}
    tenants = [tenant for name, tenant in stored.tenants.items() if tenant is not None and name not in written]
    capacity = build_capacity(plan, measured, workers)
    proof = prove_plan(plan, tenants, capacity)
    if as_json:
        print(
            json.dumps({"capacity": asdict(capacity), **asdict(proof), "oversold": proof.oversold, "kept": proof.kept})
        )
    else:
        rest = f"{capacity.usable_ratio:.0%} of the rest may be sold: {proof.backed:.2f}"
        print(f"workers: {capacity.workers}, of which {capacity.lost} may be lost; {rest}")
        print(f"{'tier':<14}{'tenants':>8}{'sold':>10}{'missing':>10}   (workers)")
        for one in proof.tiers:
            print(f"{one.tier:<14}{one.tenants:>8}{one.sold:>10.2f}{one.missing:>10.2f}")
        print(f"{'all':<14}{sum(one.tenants for one in proof.tiers):>8}{proof.sold:>10.2f}{proof.oversold:>10.2f}")
        for line in tell_proof(proof) or ["everything that is sold can be kept"]:
            print(line)
    if not proof.kept:
        raise typer.Exit(FAILED)
