"""What is not inference on the public port: one guard in front of a small FastAPI application."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from service.domain.outcome import Outcome
from service.gateway.auth import read_key
from service.gateway.cors import CorsPolicy
from service.gateway.responses import MESSAGES, OPENAI, SUSPENDED, shape_openai
from service.gateway.routes import ROUTES
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

    def reconfigure(self, cors: CorsPolicy) -> None:
        """Answer from now on as ``cors`` says."""
        self._cors = cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path, method = scope["raw_path"], scope["method"]
        if path in OPEN_PATHS:
            await self._rest(scope, receive, send)
            return
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        lines = self._cors.headers_for(origin)
        if method == "OPTIONS" and b"access-control-request-method" in headers:
            preflight = self._cors.preflight_for(origin)
            if preflight is not None:
                await _answer(send, 204, preflight, b"")
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
            status, more, body = dialect.build_refusal(Outcome.BYTES_EXHAUSTED, 1.0)
            await _answer(send, status, more + lines, body)
        elif path in ROUTES and method != "POST":
            message = f"{path.decode()} takes POST, not {method}."
            _, more, body = dialect.build_error(404, "not_found", message)
            await _answer(send, 404, more + b"allow: POST\r\n" + lines, body)
        else:
            await self._rest(scope, receive, _with_headers(send, lines))


def _pairs(lines: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, text) for name, _, text in (line.partition(b": ") for line in lines.split(b"\r\n") if line)]


async def _answer(send: Send, status: int, lines: bytes, body: bytes) -> None:
    headers = _pairs(lines) if status == 204 else [*_pairs(lines), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send, lines: bytes) -> Send:
    if not lines:
        return send
    extra = _pairs(lines)

    async def send_with_headers(message: Any) -> None:  # noqa: ANN401 - an ASGI message
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return send_with_headers


def build_rest(model_cards: Callable[[], list[dict[str, Any]]], ready: Callable[[], str | None]) -> FastAPI:
    """Everything that is not inference. ``ready`` gives the reason why no traffic should come, or ``None``."""
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
