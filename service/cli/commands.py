"""Puts the commands together."""

import typer

from service.cli.bench import app as bench
from service.cli.check import check
from service.cli.contracts import app as contracts
from service.cli.drain import drain
from service.cli.emulate import emulate
from service.cli.explain import explain
from service.cli.keys import app as keys
from service.cli.migrate import migrate
from service.cli.plan import plan
from service.cli.prober import prober
from service.cli.replay import replay
from service.cli.report import report
from service.cli.scaler import scaler
from service.cli.serve import serve
from service.cli.slo import app as slo
from service.cli.tenants import app as tenants
from service.cli.up import up
from service.cli.version import show_version
from service.cli.worker_drain import app as worker

app = typer.Typer(
    name="sluice",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Sluice: an OpenAI-compatible inference gateway in front of vLLM workers. "
    "Try 'sluice up' first. Exit codes: 0 ok, 1 failed, 2 bad input.",
)
app.command()(up)
app.command()(serve)
app.command()(scaler)
app.command()(plan)
app.command()(check)
app.add_typer(keys)
app.add_typer(tenants)
app.add_typer(contracts)
app.add_typer(worker)
app.add_typer(bench)
app.add_typer(slo)
app.command()(emulate)
app.command()(drain)
app.command()(prober)
app.command()(explain)
app.command()(replay)
app.command()(report)
app.command()(migrate)
app.command("version")(show_version)
