"""``sluice drain``: takes a gateway or one of its workers out of service, through the admin port."""

import json
import os
import time
from typing import Annotated, Any
from urllib.parse import quote, urlsplit

import httpx
import typer

from service.cli.options import BAD_INPUT, fail
from service.runtime.clock import MonotonicClock
from service.settings.admin_token import find_token
from service.settings.build import ADMIN_TOKEN

_LOOK_EVERY_S, _CALL_TIMEOUT_S = 0.1, 2.0


def drain(
    worker: Annotated[str | None, typer.Argument(help="Worker (HOST:PORT, or pod); the gateway if left out.")] = None,
    admin: Annotated[str, typer.Option("--admin", help="URL of the admin port.")] = "http://127.0.0.1:8081",
    wait_s: Annotated[
        float, typer.Option("--wait-s", min=0.0, max=86_400.0, help="Wait so long at most until the gateway is gone.")
    ] = 0.0,
    undo: Annotated[bool, typer.Option("--undo", help="Give the worker work again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a script.")] = False,
) -> None:
    """Take the gateway out of service, or one worker: no new work, what runs goes on.

    Without --wait-s it returns at once, and the gateway leaves by itself: as a preStop hook it needs no shell, and the
    signal that follows changes nothing. With it, a gateway that is not gone in time is exit code 0 too.

    Examples:  sluice drain
               sluice drain --wait-s 600
               sluice drain 127.0.0.1:9001
               sluice drain 127.0.0.1:9001 --undo
    """
    if undo and worker is None:
        fail("--undo needs a worker: a gateway that leaves cannot be called back", BAD_INPUT)
    if wait_s and worker is not None:
        fail("--wait-s waits for a gateway; 'sluice worker drain' waits for a worker", BAD_INPUT)
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
    if wait_s:
        body = _wait_until_gone(admin, token, wait_s, body)
    if as_json:
        print(json.dumps(body))
    elif worker is None:
        print(f"the gateway is {body['phase']}: {body['under_way']} requests under way")
    else:
        print(f"{worker} {'takes work again' if undo else 'gets no new work; what it has goes on'}")


def _wait_until_gone(admin: str, token: str, wait_s: float, body: dict[str, Any]) -> dict[str, Any]:
    """How far the gateway was when it was last seen; ``ended`` when it does not answer any more."""
    now = MonotonicClock().now
    end_at = now() + wait_s
    with httpx.Client(base_url=admin, headers={"authorization": f"Bearer {token}"}, trust_env=False) as client:
        while now() < end_at and body["phase"] != "ended":
            time.sleep(_LOOK_EVERY_S)
            try:
                body = client.get("/admin/v1/drain", timeout=max(min(_CALL_TIMEOUT_S, end_at - now()), 0.1)).json()
            except httpx.ConnectError:
                body = {**body, "phase": "ended", "under_way": 0}
            except (httpx.HTTPError, ValueError):
                continue  # busy, or closing under our hands
    return body
