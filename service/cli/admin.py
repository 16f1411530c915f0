"""Asks the admin port of a gateway."""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from service.cli.options import fail
from service.settings.admin_token import find_token
from service.settings.build import ADMIN_TOKEN

ADMIN_URL = "http://127.0.0.1:8081"


def ask_admin(admin: str, path: str, query: Mapping[str, str]) -> dict[str, Any]:
    """The JSON answer to a GET; exits 1 with the reason if there is none."""
    token = find_token(urlsplit(admin).port or 8081, os.environ)
    if token is None:
        fail(f"no admin token: set {ADMIN_TOKEN} to the gateway's")
    headers = {"authorization": f"Bearer {token}"}
    try:
        answer = httpx.get(f"{admin}{path}", params=query, headers=headers, timeout=10, trust_env=False)
    except httpx.HTTPError as error:
        fail(f"{admin} does not answer: {error}")
    body: dict[str, Any] = answer.json() if "json" in answer.headers.get("content-type", "") else {}
    if answer.is_error:
        fail(str(body.get("error", {}).get("message", f"{admin} answered {answer.status_code}")))
    return body
