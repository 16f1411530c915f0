"""The public ASGI application: one guard in front, the corridor for inference, FastAPI for the rest."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from service.domain.outcome import Outcome
from service.gateway.auth import read_key
from service.gateway.corridor import Corridor
from service.gateway.cors import CorsPolicy
from service.gateway.exchange import Exchange, exchange_of
from service.gateway.responses import MESSAGES, OPENAI, RESPONSES, shape_openai
from service.gateway.routes import RESPONSE_PREFIX, ROUTES, Route
from service.runtime.ports import TenantDirectory

OPEN_PATHS = frozenset((b"/healthz", b"/readyz"))
"""The only paths that need no key."""

_STORED = Route("responses_stored", b"", RESPONSES)

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class PublicApp:
    """Dispatches each request; whatever is not known is refused without a key and not found with one."""

    def __init__(self, corridor: Corridor, rest: FastAPI, directory: TenantDirectory, cors: CorsPolicy) -> None:
        self._corridor = corridor
        self._rest = rest
        self._directory = directory
        self._cors = cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = scope["raw_path"]
        exchange = exchange_of(scope)
        if scope["method"] == "POST":
            route = ROUTES.get(path)
            if route is not None:
                await self._corridor.serve(exchange, route)
                return
        if path in OPEN_PATHS:
            await self._rest(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        if scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            preflight = self._cors.preflight_for(origin)
            if preflight is not None:
                _answer(exchange, 204, preflight, b"")
                return
        dialect = MESSAGES if path.startswith(b"/v1/messages") else OPENAI
        key = read_key(scope["headers"])
        tenant = None if key is None else self._directory.find(key)
        if tenant is None:
            status, lines, body = dialect.build_refusal(Outcome.UNAUTHENTICATED)
            _answer(exchange, status, lines + self._cors.headers_for(origin), body)
            return
        if exchange.over_limit:
            status, lines, body = dialect.build_refusal(Outcome.BYTES_EXHAUSTED, 1.0)
            _answer(exchange, status, lines + self._cors.headers_for(origin), body)
            return
        stored = _stored_response(scope["method"], path)
        if stored is not None:
            await self._corridor.serve_stored(exchange, _STORED, *stored)
            return
        if path in ROUTES:
            message = f"{path.decode()} takes POST, not {scope['method']}."
            body = json.dumps(shape_openai(404, "invalid_request_error", "not_found", message, None)).encode()
            lines = b"content-type: application/json\r\nallow: POST\r\n"
            _answer(exchange, 404, lines + self._cors.headers_for(origin), body)
            return
        await self._rest(scope, receive, _with_cors(send, self._cors.headers_for(origin)))


def _answer(exchange: Exchange, status: int, headers: bytes, body: bytes) -> None:
    if status == 204:
        exchange.begin(status, headers, 0)
    else:
        exchange.begin(status, headers, len(body))
        if exchange.scope["method"] != "HEAD":
            exchange.write(body)
    exchange.finish()


def _with_cors(send: Send, lines: bytes) -> Send:
    if not lines:
        return send
    extra = [tuple(line.split(b": ", 1)) for line in lines.split(b"\r\n") if line]

    async def send_with_cors(message: Any) -> None:  # noqa: ANN401 - an ASGI message
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return send_with_cors


def _stored_response(method: str, path: bytes) -> tuple[str, bytes] | None:
    """Id and tail of ``GET /v1/responses/{id}`` and ``POST /v1/responses/{id}/cancel``."""
    if not path.startswith(RESPONSE_PREFIX):
        return None
    response_id, slash, tail = path.removeprefix(RESPONSE_PREFIX).partition(b"/")
    name = response_id.decode("ascii", "replace")
    if not name.replace("_", "").replace("-", "").isalnum():
        return None
    if method == "GET" and not slash:
        return name, b""
    if method == "POST" and tail == b"cancel":
        return name, b"/cancel"
    return None


def build_rest(model_cards: Callable[[], list[dict[str, Any]]], ready: Callable[[], str | None]) -> FastAPI:
    """Everything that is not inference. ``ready`` gives the reason why no traffic should come, or ``None``."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)

    @app.exception_handler(HTTPException)
    async def explain(request: object, error: HTTPException) -> JSONResponse:
        if error.status_code == 404:
            error.detail = "There is nothing here. See the list of routes in the documentation."
        body = shape_openai(error.status_code, "invalid_request_error", "not_found", str(error.detail), None)
        return JSONResponse(body, error.status_code if error.status_code != 405 else 404, dict(error.headers or {}))

    @app.api_route("/healthz", methods=["GET", "HEAD"])
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.api_route("/readyz", methods=["GET", "HEAD"])
    async def readyz() -> Response:
        reason = ready()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, 503)

    @app.get("/v1/models")
    async def list_models() -> Response:
        return JSONResponse({"object": "list", "data": model_cards()})

    @app.get("/v1/models/{model_id:path}")
    async def show_model(model_id: str) -> Response:
        for card in model_cards():
            if card["id"] == model_id:
                return JSONResponse(card)
        message = f"The model {model_id[:128]!r} does not exist here."
        return JSONResponse(shape_openai(404, "invalid_request_error", "model_not_found", message, "model"), 404)

    return app
