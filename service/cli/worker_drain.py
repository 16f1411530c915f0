"""``sluice worker drain``: what a platform runs in a worker's pod before it ends it."""

import time
from typing import Annotated

import httpx
import typer

from service.cli.options import BAD_INPUT, fail
from service.cli.worker import app
from service.runtime.clock import MonotonicClock
from service.workers.addresses import parse_address
from service.workers.emptying import EmptyingConfig, Ending, fetch_requests, wait_until_empty

__all__ = ["app", "drain"]

_CALL_TIMEOUT_S = 3.0


@app.command()
def drain(
    url: Annotated[str, typer.Option("--url", help="Where the worker listens.")] = "http://127.0.0.1:8000",
    deadline_s: Annotated[
        float, typer.Option("--deadline-s", min=0.0, max=86_400.0, help="Longest wait; what is left then is told.")
    ] = 570.0,
    delay_s: Annotated[
        float,
        typer.Option("--delay-s", min=0.0, max=86_400.0, help="Least wait: until gateways have heard of the end."),
    ] = 5.0,
) -> None:
    """Wait until the worker has nothing left to do, or until the deadline; both are exit code 0.

    Meant for a preStop hook, without a shell: the worker serves on meanwhile, its gateways send it nothing new once its
    pod is terminating, and the signal that ends it comes when this command has returned.

    Example:  sluice worker drain --url http://127.0.0.1:8000 --deadline-s 570
    """
    try:
        address = parse_address(url)
    except ValueError as error:
        fail(f"--url: {error}", BAD_INPUT)
    if delay_s > deadline_s:
        fail(f"--delay-s is {delay_s:g}, above --deadline-s ({deadline_s:g}): lower it", BAD_INPUT)
    config = EmptyingConfig(deadline_s, delay_s)
    # Its certificate is for another name than loopback's; nothing secret is sent, and a wrong count is bounded.
    with httpx.Client(timeout=_CALL_TIMEOUT_S, trust_env=False, verify=False) as client:  # noqa: S501
        emptied = wait_until_empty(
            config, lambda: fetch_requests(client, address.base_url), MonotonicClock().now, time.sleep
        )
    match emptied.ending:
        case Ending.EMPTY:
            print(f"{address.authority} is empty after {emptied.took_s:.1f} s")
        case Ending.GONE:
            print(f"{address.authority}: nobody listens there")
        case Ending.DEADLINE:
            left = "an unknown number of" if emptied.left is None else emptied.left
            print(f"{address.authority} still has {left} requests after {emptied.took_s:.1f} s")
