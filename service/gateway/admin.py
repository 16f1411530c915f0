"""The operators' port: health and figures in the open, the rest behind a bearer token. Never exposed to clients."""

import hmac
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

ADMIN_OPEN_PATHS = frozenset(("/healthz", "/readyz", "/metrics"))
"""The only paths that need no token."""

Json = dict[str, Any]
RenderMetrics = Callable[[str | None], tuple[bytes, str]]
"""Body and content type for an ``Accept`` header."""
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

_DECISIONS_MAX = 1000
"""Of one answer: each is written out on the loop, 40 us (measured)."""


class Operations(Protocol):
    """What an operator may see and do. Nothing returned carries a secret."""

    def ready(self) -> str | None:
        """Why no traffic should come, or ``None``."""
        ...

    def state(self) -> Json:
        """The gateway at a glance."""
        ...

    def workers(self) -> Sequence[Json]:
        """Each worker as the gateway sees it."""
        ...

    def queues(self) -> Json:
        """What waits and what bounds it."""
        ...

    def tenants(self) -> Sequence[Json]:
        """Tenants and the prefixes of their keys."""
        ...

    def config(self) -> Json:
        """The configuration in force."""
        ...

    def decisions(self, request_id: str | None, limit: int) -> Json:
        """The latest decisions, newest first, or all about one request, in order."""
        ...

    def force_brownout(self, level: int) -> None:
        """Refuse what a level of brownout keeps out, until another level is set."""
        ...

    def restrain(self, on: bool) -> Json:
        """Let burning budgets hold traffic back, or not; whom they hold back."""
        ...

    def drain_status(self) -> Json:
        """How far the gateway has left."""
        ...

    def begin_drain(self) -> None:
        """Leave; a second time: at once."""
        ...

    def drain_worker(self, worker_id: str, draining: bool) -> bool:
        """Give a worker no new work, or give it work again; ``False`` if there is no such worker."""
        ...

    def let_worker_go(self) -> str | None:
        """Drain the worker whose going is felt least; its id, or ``None`` if none may go."""
        ...

    async def reload(self) -> tuple[Sequence[str], Sequence[str]]:
        """Read the configuration again: faults (then nothing has changed), and settings that wait for a restart."""
        ...


class AdminGuard:
    """Pure ASGI: whatever routes are added behind it, only health and figures are open."""

    def __init__(self, app: FastAPI, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["path"] not in ADMIN_OPEN_PATHS and not self._knows(dict(scope["headers"])):
            headers = {"www-authenticate": "Bearer"}
            await JSONResponse(_error("The admin token is missing or wrong."), 401, headers)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _knows(self, headers: Mapping[bytes, bytes]) -> bool:
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        return hmac.compare_digest(token.strip(), self._token) and scheme.lower() == b"bearer"


def _error(message: str, **more: object) -> Json:
    return {"error": {"message": message, **more}}


def build_admin(operations: Operations, render_metrics: RenderMetrics) -> FastAPI:
    """The application behind the guard."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    _add_views(app, operations)
    _add_decisions(app, operations)
    _add_actions(app, operations)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        body, content_type = render_metrics(request.headers.get("accept"))
        return Response(body, headers={"content-type": content_type})

    @app.exception_handler(HTTPException)
    async def explain(request: object, error: HTTPException) -> JSONResponse:
        return JSONResponse(_error("There is nothing here."), error.status_code, dict(error.headers or {}))

    return app


def _add_views(app: FastAPI, operations: Operations) -> None:
    @app.api_route("/healthz", methods=["GET", "HEAD"])
    async def healthz() -> Response:
        return JSONResponse({"status": "ok"})

    @app.api_route("/readyz", methods=["GET", "HEAD"])
    async def readyz() -> Response:
        reason = operations.ready()
        if reason is None:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "not ready", "reason": reason}, 503, {"retry-after": "1"})

    @app.get("/admin/v1/state")
    async def state() -> Response:
        return JSONResponse(operations.state())

    @app.get("/admin/v1/workers")
    async def workers() -> Response:
        return JSONResponse({"workers": list(operations.workers())})

    @app.get("/admin/v1/queues")
    async def queues() -> Response:
        return JSONResponse(operations.queues())

    @app.get("/admin/v1/tenants")
    async def tenants() -> Response:
        return JSONResponse({"tenants": list(operations.tenants())})

    @app.get("/admin/v1/config")
    async def config() -> Response:
        return JSONResponse(operations.config())

    @app.get("/admin/v1/drain")
    async def drain_status() -> Response:
        return JSONResponse(operations.drain_status())


def _add_decisions(app: FastAPI, operations: Operations) -> None:
    @app.get("/admin/v1/decisions")
    async def decisions(request: Request) -> Response:
        limit = request.query_params.get("limit", "100")
        if not (limit.isascii() and limit.isdigit() and len(limit) <= 5 and 0 < int(limit) <= _DECISIONS_MAX):
            return JSONResponse(_error(f"limit must be a whole number from 1 to {_DECISIONS_MAX}."), 422)
        asked = request.query_params.get("request_id")
        found = operations.decisions(asked, int(limit))
        if asked is not None and not found["decisions"] and found["ending"] is None:
            return JSONResponse(_error(f"Nothing is remembered of {asked[:128]!r}: unknown, or too long ago."), 404)
        return JSONResponse(found)


def _add_actions(app: FastAPI, operations: Operations) -> None:
    @app.post("/admin/v1/drain")
    async def drain() -> Response:
        operations.begin_drain()
        return JSONResponse(operations.drain_status(), 202)

    @app.post("/admin/v1/brownout")
    async def brownout(request: Request) -> Response:
        level = _read_level(await request.body())
        if level is None:
            return JSONResponse(_error('Send {"level": N} with N from 0 to 3.'), 422)
        operations.force_brownout(level)
        return JSONResponse({"brownout_level": level})

    @app.post("/admin/v1/restraint")
    async def restraint(request: Request) -> Response:
        on = _read_member(await request.body(), "on")
        if not isinstance(on, bool):
            return JSONResponse(_error('Send {"on": true} or {"on": false}.'), 422)
        return JSONResponse(operations.restrain(on))

    @app.post("/admin/v1/workers/{worker_id}/drain")
    async def drain_worker(worker_id: str) -> Response:
        return _set_draining(operations, worker_id, draining=True)

    @app.post("/admin/v1/workers/leave")
    async def let_worker_go() -> Response:
        worker_id = operations.let_worker_go()
        if worker_id is None:
            return JSONResponse(_error("No worker may go: only one is left that serves, or all others drain."), 409)
        return JSONResponse({"worker": worker_id, "draining": True})

    @app.post("/admin/v1/workers/{worker_id}/undrain")
    async def undrain_worker(worker_id: str) -> Response:
        return _set_draining(operations, worker_id, draining=False)

    @app.post("/admin/v1/config/reload")
    async def reload() -> Response:
        faults, waiting = await operations.reload()
        if faults:
            return JSONResponse(_error("Refused as a whole; nothing has changed.", faults=list(faults)), 422)
        return JSONResponse({"status": "applied", "needs_restart": list(waiting)})


def _read_level(body: bytes) -> int | None:
    level = _read_member(body, "level")
    return level if type(level) is int and 0 <= level <= 3 else None


def _read_member(body: bytes, name: str) -> object:
    """The one member of an object that has no other; ``None`` for anything else."""
    try:
        given = json.loads(body)
    except ValueError:
        return None
    return given[name] if isinstance(given, dict) and set(given) == {name} else None


def _set_draining(operations: Operations, worker_id: str, draining: bool) -> Response:
    if not operations.drain_worker(worker_id, draining):
        return JSONResponse(_error(f"There is no worker {worker_id[:128]!r}."), 404)
    return JSONResponse({"worker": worker_id, "draining": draining})
