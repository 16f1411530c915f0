"""``sluice plan``: what-if questions about capacity."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.exc import SQLAlchemyError

from service.cli.options import BAD_INPUT, FileOption, choose_file, fail, tell_faults
from service.cli.plan_input import InputError, read_ledger, read_trace
from service.cli.plan_picture import draw
from service.ledger.database import is_ledger, open_database
from service.ledger.query import read_months
from service.settings.build import load_plan
from service.settings.fault import SettingsRefusedError
from service.slo.planning import CELL_S, Answer, Asked, Rates, answer, build_usage

SLICE_HELP = "Requests a minute, prompt tokens and output tokens of one more contract, as 600,800,200; and its rank."


def plan(
    trace: Annotated[Path | None, typer.Argument(help="Trace: .csv as Azure's, .jsonl as Mooncake's.")] = None,
    config: FileOption = None,
    ledger: Annotated[str | None, typer.Option(help="Instead of a trace: URL of the ledger, with --month.")] = None,
    month: Annotated[str | None, typer.Option(help="Month of the ledger, as 2026-11.")] = None,
    prompt_rate: Annotated[float, typer.Option(min=1.0, help="Prompt tokens that a worker reads in a second.")] = ...,  # type: ignore[assignment]
    output_rate: Annotated[float, typer.Option(min=1.0, help="Tokens that a worker writes in a second.")] = ...,  # type: ignore[assignment]
    attainment: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Share that is to be met.")] = 0.99,
    zones: Annotated[int, typer.Option(min=1, help="Zones over which workers are spread evenly.")] = 3,
    cold_start_s: Annotated[float, typer.Option(min=0.0, help="P95 of a cold start.")] = 600.0,
    contract: Annotated[str | None, typer.Option(help=SLICE_HELP)] = None,
    scale: Annotated[float, typer.Option(min=0.001, help="As many times as many requests as there were.")] = 1.0,
    price: Annotated[float | None, typer.Option(min=0.0, help="Of a worker-hour, in whatever you pay.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a script.")] = False,
    picture: Annotated[Path | None, typer.Option(help="Write a plot to this .svg file.")] = None,
) -> None:
    """How many workers a promise needs, what one more contract needs, what breaks when workers or a zone die, and what
    another nine costs: from a trace, or from what the ledger says was asked.

    Examples:  sluice plan trace.csv --prompt-rate 30000 --output-rate 4000
               sluice plan --ledger sqlite:///var/ledger.db --month 2026-11 -c sluice.yaml --prompt-rate 30000 \
--output-rate 4000 --contract 600,800,200,0
    """
    rates = Rates(prompt_rate / scale, output_rate / scale)
    names: Mapping[int, str] = {}
    try:
        if trace is not None and ledger is None:
            usage = build_usage(read_trace(trace), rates)
        elif trace is None and ledger is not None and month is not None:
            asked, names = _read_month(ledger, month, config)
            usage = build_usage(asked, rates)
        else:
            fail("give either a trace, or --ledger with --month", BAD_INPUT)
        more = None if contract is None else _read_contract(contract, Rates(prompt_rate, output_rate), scale)
        found = answer(usage, attainment, zones, cold_start_s, more)
    except (InputError, ValueError) as error:
        fail(str(error), BAD_INPUT)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", BAD_INPUT)
    if picture is not None:
        picture.write_text(draw(found))
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        print("\n".join(_tell(found, names, price)))


def _read_month(url: str, month: str, config: Path | None) -> tuple[list[Asked], dict[int, str]]:
    path = choose_file(config)
    try:
        tiers = load_plan(path, os.environ, b"").corridor.tiers
    except SettingsRefusedError as refused:
        tell_faults(path, refused)
    ranks = {str(name): tier.rank for name, tier in tiers.items() if not tier.best_effort}
    with suppress(SQLAlchemyError), open_database(url, read_only=True).connect() as connection:
        if is_ledger(connection) and read_months(connection).get(month):
            return list(read_ledger(connection, month, ranks)), {rank: name for name, rank in ranks.items()}
    raise InputError(f"{url} has no entries of {month}: it is no ledger, cannot be read, or the month was dropped")


def _read_contract(text: str, rates: Rates, scale: float) -> tuple[float, int, int]:
    try:
        per_minute, prompt, output, *rank = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--contract {text!r}: write four numbers, as 600,800,200,0") from None
    work = per_minute / 60.0 * rates.work_s(prompt, output)
    return work, int(rank[0]) if rank else 0, max(round(per_minute * CELL_S / 60.0 / scale), 1)


def _tell(found: Answer, names: Mapping[int, str], price: float | None) -> list[str]:
    def cost(hours: float) -> str:
        return "" if price is None else f", {hours * price:,.2f}"

    wanted = found.wanted
    lines = [
        f"asked: {found.hours:.1f} hours, {found.mean_demand:.1f} workers' worth on average, "
        f"{found.peak_demand:.1f} in the busiest minute",
        f"{wanted.attainment:.2%} needs {wanted.workers} workers that are always there",
        "",
        f"{'met':>8}{'workers':>9}{'worker-hours':>14}{'following demand':>18}",
    ]
    lines += [
        f"{one.attainment:>8.2%}{one.workers:>9}{one.fixed_hours:>14,.0f}{one.following_hours:>18,.0f}"
        f"{cost(one.fixed_hours)}"
        for one in found.capacities
    ]
    low, high = (next(one for one in found.capacities if one.attainment == goal) for goal in (0.99, 0.999))
    lines.append(
        f"from 99 % to 99.9 %: {high.workers - low.workers} workers more, "
        f"{high.fixed_hours - low.fixed_hours:,.0f} worker-hours{cost(high.fixed_hours - low.fixed_hours)}"
    )
    if found.contract is not None:
        lines.append(
            f"with one more contract: {found.contract.workers} workers, {found.contract.workers - wanted.workers} more"
        )
    lines.append("")
    for loss in found.losses:
        for what, by_rank in (("overall", loss.overall), ("worst hour", loss.worst_hour)):
            told = ", ".join(f"{names.get(rank, f'rank {rank}')} {met:.2%}" for rank, met in sorted(by_rank.items()))
            lines.append(f"{loss.name} dies ({loss.lost} of {wanted.workers}), {what}: {told}")
    return lines
