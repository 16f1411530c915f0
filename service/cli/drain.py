"""``sluice drain``: takes a gateway or one of its workers out of service, through the admin port."""

import json
import os
from typing import Annotated
from urllib.parse import quote, urlsplit

import httpx
import typer

from service.cli.options import BAD_INPUT, fail
from service.settings.admin_token import find_token
from service.settings.build import ADMIN_TOKEN


def drain(
    worker: Annotated[str | None, typer.Argument(help="Worker to drain (HOST:PORT); the gateway if left out.")] = None,
    admin: Annotated[str, typer.Option("--admin", help="URL of the admin port.")] = "http://127.0.0.1:8081",
    undo: Annotated[bool, typer.Option("--undo", help="Give the worker work again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a script.")] = False,
) -> None:
    """Take the gateway out of service, or one worker: no new work, what runs goes on.

    Examples:  sluice drain
               sluice drain 127.0.0.1:9001
               sluice drain 127.0.0.1:9001 --undo
    """
    if undo and worker is None:
        fail("--undo needs a worker: a gateway that leaves cannot be called back", BAD_INPUT)
    port = urlsplit(admin).port
    token = find_token(port or 8081, os.environ)
    if token is None:
        fail(f"no admin token: set {ADMIN_TOKEN} to the gateway's")
    path = "/admin/v1/drain"
    if worker is not None:
        path = f"/admin/v1/workers/{quote(worker, safe='')}/{'undrain' if undo else 'drain'}"
    try:
        answer = httpx.post(f"{admin}{path}", headers={"authorization": f"Bearer {token}"}, timeout=10, trust_env=False)
    except httpx.HTTPError as error:
        fail(f"{admin} does not answer: {error}")
    body = answer.json() if "json" in answer.headers.get("content-type", "") else {}
    if answer.is_error:
        fail(str(body.get("error", {}).get("message", f"{admin} answered {answer.status_code}")))
    if as_json:
        print(json.dumps(body))
    elif worker is None:
        print(f"the gateway is {body['phase']}: {body['under_way']} requests under way")
    else:
        print(f"{worker} {'takes work again' if undo else 'gets no new work; what it has goes on'}")
