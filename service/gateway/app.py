"""What is not inference on the public port: one guard in front of a small FastAPI application."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from service.domain.outcome import Outcome
from service.domain.tenant import Tenant
from service.gateway.auth import read_key
from service.gateway.cors import CorsPolicy
from service.gateway.headers import is_sane_id
from service.gateway.responses import MESSAGES, OPENAI, SUSPENDED, render_retry, shape_openai
from service.gateway.routes import ROUTES
from service.runtime.advice import compute_retry_after_s
from service.runtime.ports import TenantDirectory

OPEN_PATHS = frozenset((b"/healthz", b"/readyz"))
"""The only paths that need no key."""

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Guard:
    """Pure ASGI: without a key there is nothing but health, whatever routes are added behind it."""

    def __init__(self, rest: FastAPI, directory: TenantDirectory, cors: CorsPolicy) -> None:
        self._rest = rest
        self._directory = directory
        self._cors = cors

        self._prefix = secrets.token_hex(4)
        self._count = 0

    def reconfigure(self, cors: CorsPolicy) -> None:
        """Answer from now on as ``cors`` says."""
        self._cors = cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path, method = scope["raw_path"], scope["method"]
        headers = dict(scope["headers"])
        named = b"x-request-id: %b\r\n" % self._name(headers)
        if path in OPEN_PATHS:
            await self._rest(scope, receive, _with_headers(send, named))
            return
        origin = headers.get(b"origin")
        lines = self._cors.headers_for(origin) + named
        if method == "OPTIONS" and b"access-control-request-method" in headers:
            preflight = self._cors.preflight_for(origin)
            if preflight is not None:
                await _answer(send, 204, preflight + named, b"")
                return
        dialect = MESSAGES if path.startswith(b"/v1/messages") else OPENAI
        key = read_key(scope["headers"])
        tenant = None if key is None else self._directory.find(key)
        if tenant is None:
            status, more, body = dialect.build_refusal(Outcome.UNAUTHENTICATED)
            await _answer(send, status, more + lines, body)
        elif tenant.suspended:
            status, more, body = dialect.build_refusal(Outcome.FORBIDDEN, None, SUSPENDED)
            await _answer(send, status, more + lines, body)
        elif scope["extensions"].get("sluice.over_limit", {}).get("value"):
            status, more, body = dialect.build_refusal(Outcome.BYTES_EXHAUSTED, _advise(scope["client"]))
            await _answer(send, status, more + lines, body)
        elif path in ROUTES and method != "POST":
            message = f"{path.decode()} takes POST, not {method}."
            _, more, body = dialect.build_error(404, "not_found", message)
            await _answer(send, 404, more + b"allow: POST\r\n" + lines, body)
        else:
            scope["state"]["tenant"] = tenant
            await self._rest(scope, receive, _with_headers(send, lines))

    def _name(self, headers: Mapping[bytes, bytes]) -> bytes:
        """The client's own id of the request if it is sane, else ours."""
        theirs = headers.get(b"x-request-id")
        if theirs is not None and is_sane_id(theirs):
            return theirs
        self._count += 1
        return b"%b-%08x" % (self._prefix.encode(), self._count)


def _advise(client: tuple[str, int] | None) -> float:
    port = client[1] if client else 0  # many are sent away in one turn of the loop
    return compute_retry_after_s(asyncio.get_running_loop().time() + port)


def _pairs(lines: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, text) for name, _, text in (line.partition(b": ") for line in lines.split(b"\r\n") if line)]


async def _answer(send: Send, status: int, lines: bytes, body: bytes) -> None:
    headers = _pairs(lines) if status == 204 else [*_pairs(lines), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send, lines: bytes) -> Send:
    extra = _pairs(lines)

    async def send_with_headers(message: Any) -> None:  # noqa: ANN401 - an ASGI message
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return send_with_headers


Standing = Callable[[Tenant], Awaitable[dict[str, Any] | None]]
"""What a tenant was promised and what became of it this month; ``None`` while nobody knows."""


def build_rest(
    model_cards: Callable[[], list[dict[str, Any]]],
    ready: Callable[[], str | None],
    standing: Standing | None = None,
) -> FastAPI:
    """Everything that is not inference. ``ready`` gives the reason why no traffic should come, or ``None``; without
    ``standing`` no record is kept, and there is no ``/v1/sla``."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)

    @app.exception_handler(HTTPException)
    async def explain(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        path: str = request.scope["path"]
        message = "There is nothing here. See the list of routes in the documentation."
        if error.status_code == 405:
            message = f"{path[:256]} takes {headers.get('Allow', 'other methods')}, not {request.method}."
        dialect = MESSAGES if path.startswith("/v1/messages") else OPENAI
        _, _, body = dialect.build_error(404, "not_found", message)
        return Response(body, 404, headers, "application/json")

    @app.exception_handler(Exception)
    async def apologise(request: Request, error: Exception) -> Response:
        _, _, body = OPENAI.build_refusal(Outcome.GATEWAY_FAULT)
        return Response(body, 500, None, "application/json")

    @app.api_route("/healthz", methods=["GET", "HEAD"])
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.api_route("/readyz", methods=["GET", "HEAD"])
    async def readyz(request: Request) -> Response:
        reason = ready()
        if reason is None:
            return JSONResponse({"status": "ready"})
        headers = {name.decode(): text.decode() for name, text in _pairs(render_retry(_advise(request.client)))}
        return JSONResponse({"status": "not ready", "reason": reason}, 503, headers)

    _add_standing(app, standing)

    def list_cards(request: Request) -> list[dict[str, Any]]:
        """Models in the contract of whoever asks."""
        models = request.state.tenant.models
        return [card for card in model_cards() if not models or card["id"] in models]

    @app.get("/v1/models")
    async def list_models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": list_cards(request)})

    @app.get("/v1/models/{model_id:path}")
    async def show_model(request: Request, model_id: str) -> Response:
        for card in list_cards(request):
            if card["id"] == model_id:
                return JSONResponse(card)
        message = f"The model {model_id[:128]!r} does not exist here."
        return JSONResponse(shape_openai(404, "invalid_request_error", "model_not_found", message, "model"), 404)

    return app


def _add_standing(app: FastAPI, standing: Standing | None) -> None:
    if standing is None:
        return

    @app.get("/v1/sla")
    async def show_standing(request: Request) -> Response:
        told = await standing(request.state.tenant)
        if told is not None:
            return JSONResponse(told)
        message = "The ledger is away; requests go on being recorded. Retry after the given time."
        _, _, body = OPENAI.build_error(503, "ledger_away", message)
        headers = {name.decode(): text.decode() for name, text in _pairs(render_retry(_advise(request.client)))}
        return Response(body, 503, headers, "application/json")
