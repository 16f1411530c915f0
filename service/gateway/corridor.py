"""One inference request at the edge: request, auth, peek; then its journey; whatever happens, one settlement."""

import hashlib
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from service.domain.outcome import Outcome
from service.domain.request import Request
from service.domain.tenant import Tenant
from service.domain.tier import Tier
from service.domain.units import RequestId, TierName, WorkerId
from service.gateway.auth import read_key
from service.gateway.cors import CorsPolicy
from service.gateway.exchange import Exchange
from service.gateway.peek import Peeked, PeekError, peek
from service.gateway.routes import Route
from service.runtime.account import Settlement
from service.runtime.bypass import Bypass
from service.runtime.journey import Journey, Outbound, Road
from service.runtime.ports import TenantDirectory

_SANE_ID = re.compile(rb"[A-Za-z0-9._:\-]{1,128}")
_PASSED = (b"accept", b"traceparent", b"tracestate", b"anthropic-version", b"anthropic-beta")
"""Client headers that reach the worker. Everything else stays here: credentials, cookies, and whatever claims a
tenant, a tier or a destination."""
_RESPONSES_KEPT = 65536


@dataclass(frozen=True, slots=True)
class CorridorConfig:
    """What the edge needs to know of the service. ``priority_step``: vLLM priority per rank of a tier."""

    model: str
    tiers: Mapping[TierName, Tier]
    queue_ttl_s: float = 30.0
    body_timeout_s: float = 60.0
    priority_step: int = 10
    salt: bytes = b""


class _Refused(Exception):  # noqa: N818 - a way out, not an error
    def __init__(self, outcome: Outcome, detail: str | None = None, param: str | None = None) -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.detail = detail
        self.param = param


@dataclass(slots=True)
class Responses:
    """Which worker and tenant made which stored response; bounded, the oldest are forgotten."""

    made: OrderedDict[str, Settlement] = field(default_factory=OrderedDict)

    def remember(self, response_id: str, settlement: Settlement) -> None:
        """Note who makes it; the settlement knows its worker once it is dispatched."""
        self.made[response_id] = settlement
        if len(self.made) > _RESPONSES_KEPT:
            self.made.popitem(last=False)

    def worker_of(self, response_id: str, tenant: Tenant) -> WorkerId | None:
        """The worker that holds it, if it is the tenant's own."""
        settlement = self.made.get(response_id)
        return settlement.worker_id if settlement is not None and settlement.tenant_id == tenant.tenant_id else None


class Corridor:
    """Serves inference routes."""

    def __init__(self, road: Road, directory: TenantDirectory, config: CorridorConfig, cors: CorsPolicy) -> None:
        self._road = road
        self._directory = directory
        self._cors = cors
        self._responses = Responses()
        self._now = road.clock.now
        self._prefix = secrets.token_hex(4)
        self._count = 0
        self._salts: dict[str, bytes] = {}
        self.config = config

    async def serve(self, exchange: Exchange, route: Route) -> None:
        """Serve one request from its head to its last byte."""
        settlement = Settlement(self._next_id(), route.kind, self._now())
        headers = list(exchange.scope["headers"])
        try:
            try:
                await self._serve(exchange, route, settlement, headers)
            except _Refused as refused:
                self._refuse(exchange, route, settlement, refused)
            except Exception:
                self._refuse(exchange, route, settlement, _Refused(Outcome.GATEWAY_FAULT))
                raise
        finally:
            exchange.listener = None
            exchange.release_body()
            self._road.accounts.settle(settlement, Outcome.GATEWAY_FAULT, self._now())

    async def serve_stored(self, exchange: Exchange, route: Route, response_id: str, tail: bytes) -> None:
        """GET or cancel a stored response at the worker that made it."""
        settlement = Settlement(self._next_id(), "responses_stored", self._now())
        headers = list(exchange.scope["headers"])
        try:
            tenant = self._authenticate(headers, settlement)
            worker_id = self._responses.worker_of(response_id, tenant)
            if worker_id is None:
                raise _Refused(Outcome.UNKNOWN_RESPONSE)  # noqa: TRY301 - one way out for all refusals
            query = exchange.scope["query_string"]
            method = exchange.scope["method"].encode()
            target = method + b" /v1/responses/" + response_id.encode() + tail + (b"?" + query if query else b"")
            out = Outbound(target, self._headers_out(dict(headers), settlement, 0), ())
            request = self._request(tenant, settlement, exchange, None, b"stream=true" in query, None, worker_id)
            road = self._road
            bypass = Road(
                Bypass(worker_id), road.transport, road.accounts, road.clock, road.loop, road.relay, road.opaque
            )
            await self._travel(bypass, request, out, exchange, route, settlement, headers)
        except _Refused as refused:
            self._refuse(exchange, route, settlement, refused)
        finally:
            exchange.listener = None
            exchange.release_body()
            self._road.accounts.settle(settlement, Outcome.GATEWAY_FAULT, self._now())

    # ---------------------------------------------------------------- stages

    async def _serve(
        self,
        exchange: Exchange,
        route: Route,
        settlement: Settlement,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        named = dict(headers)
        tenant = self._authenticate(headers, settlement)
        body = await self._read_body(exchange, named)
        settlement.prompt_bytes = len(body)
        extra = self._extra(tenant) if route.salted else b""
        response_id = None
        if route.kind == "responses":
            response_id = "resp_" + secrets.token_hex(16)
            extra += b'"request_id":"%b",' % response_id.encode()
        try:
            peeked = peek(body, route.usage_on_request, extra, route.model_required)
        except PeekError as error:
            raise _Refused(Outcome.MALFORMED, error.message, error.param) from None
        settlement.stream = peeked.stream
        pinned_to = self._check(peeked, route, tenant)
        request = self._request(tenant, settlement, exchange, peeked.max_output_tokens, peeked.stream, named, pinned_to)
        size = sum([len(part) for part in peeked.parts])
        out = Outbound(
            route.target, self._headers_out(named, settlement, size, request.rank), peeked.parts, peeked.strip_usage
        )
        if response_id is not None:
            self._responses.remember(response_id, settlement)
        await self._travel(self._road, request, out, exchange, route, settlement, headers)

    def _authenticate(self, headers: Sequence[tuple[bytes, bytes]], settlement: Settlement) -> Tenant:
        key = read_key(headers)
        tenant = self._directory.find(key) if key is not None else None
        if tenant is None:
            raise _Refused(Outcome.UNAUTHENTICATED)
        settlement.tenant_id = tenant.tenant_id
        settlement.tier = tenant.tier
        if tenant.suspended:
            raise _Refused(Outcome.FORBIDDEN, "This tenant is suspended. Ask the operator of the service.")
        return tenant

    async def _read_body(self, exchange: Exchange, named: Mapping[bytes, bytes]) -> bytearray:
        if exchange.over_limit:
            raise _Refused(Outcome.BYTES_EXHAUSTED, "Too many connections to this gateway. Try again shortly.")
        if named.get(b"content-encoding", b"identity") != b"identity":
            raise _Refused(Outcome.MALFORMED, "Compressed bodies are not supported: send the body as it is.")
        if exchange.more_body or exchange.body_refused is not None:
            length = named.get(b"content-length")
            declared = int(length) if length is not None and length.isdigit() else None
            in_time = await exchange.read_body(declared, self.config.body_timeout_s)
            if exchange.gone:
                raise _Refused(Outcome.CLIENT_GONE_EARLY)
            if not in_time:
                raise _Refused(Outcome.BODY_TIMEOUT)
        if exchange.body_refused == "too_large":
            limit = exchange.body_limit
            raise _Refused(Outcome.TOO_LARGE, f"The request body is larger than the {limit} bytes allowed here.")
        if exchange.body_refused is not None:
            raise _Refused(Outcome.BYTES_EXHAUSTED)
        return exchange.body

    def _check(self, peeked: Peeked, route: Route, tenant: Tenant) -> WorkerId | None:
        """Whether the model may be used; the worker that must serve it, if only one can."""
        model = peeked.model
        if model != self.config.model and (model or route.model_required):
            raise _Refused(Outcome.UNKNOWN_MODEL, f"The model {model[:128]!r} does not exist here.", "model")
        if tenant.models and self.config.model not in tenant.models:
            raise _Refused(Outcome.FORBIDDEN, "The model is not in this tenant's contract.", "model")
        if peeked.previous_response_id is None or route.kind != "responses":
            return None
        worker_id = self._responses.worker_of(peeked.previous_response_id, tenant)
        if worker_id is None:
            raise _Refused(Outcome.UNKNOWN_RESPONSE, None, "previous_response_id")
        return worker_id

    def _request(
        self,
        tenant: Tenant,
        settlement: Settlement,
        exchange: Exchange,
        bound: int | None,
        stream: bool,
        named: Mapping[bytes, bytes] | None,
        pinned_to: WorkerId | None,
    ) -> Request:
        tier = self.config.tiers[tenant.tier]
        budget_s = tier.queue_ttl_s or self.config.queue_ttl_s
        session = None
        if named is not None:
            deadline_s = _read_deadline(named.get(b"x-sluice-deadline-ms"))
            if deadline_s is not None and deadline_s < budget_s:
                budget_s = deadline_s
            hint = named.get(b"x-sluice-session")
            if hint is not None:
                session = hashlib.blake2b(hint, key=tenant.tenant_id.encode()[:64], digest_size=16).hexdigest()
        return Request(
            settlement.request_id,
            tenant.tenant_id,
            tenant.tier,
            tier.rank,
            settlement.prompt_bytes,
            bound,
            stream,
            settlement.arrived_at,
            settlement.arrived_at + budget_s,
            session,
            pinned_to,
        )

    async def _travel(
        self,
        road: Road,
        request: Request,
        out: Outbound,
        exchange: Exchange,
        route: Route,
        settlement: Settlement,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        named = dict(headers)
        deadline_s = _read_deadline(named.get(b"x-sluice-deadline-ms"))
        limit_at = None if deadline_s is None else settlement.arrived_at + deadline_s
        head = self._head(named, settlement, request.tier)
        journey = Journey(road, request, out, exchange, route.dialect, head, settlement, limit_at)
        exchange.listener = journey
        if exchange.gone:  # it left while the body was read
            raise _Refused(Outcome.CLIENT_GONE_EARLY)
        await journey.travel()

    # ---------------------------------------------------------------- pieces

    def _refuse(self, exchange: Exchange, route: Route, settlement: Settlement, refused: _Refused) -> None:
        if settlement.outcome is not None or exchange.response_started:
            if not exchange.response_complete:
                exchange.cut()
            return
        if not exchange.gone:
            retry_after_s = 1.0 if refused.outcome.retryable else None
            status, headers, body = route.dialect.build_refusal(
                refused.outcome, retry_after_s, refused.detail, refused.param
            )
            settlement.status = status
            exchange.begin(status, headers + self._head(dict(exchange.scope["headers"]), settlement, None), len(body))
            exchange.write(body)
            exchange.finish()
        self._road.accounts.settle(settlement, refused.outcome, self._now())

    def _head(self, named: Mapping[bytes, bytes], settlement: Settlement, tier: str | None) -> bytes:
        """Our own header lines, the same on every answer."""
        theirs = named.get(b"x-request-id")
        if theirs is None or _SANE_ID.fullmatch(theirs) is None:
            theirs = settlement.request_id.encode()
        lines = b"x-request-id: %b\r\n" % theirs
        if tier is not None:
            lines += b"x-sluice-tier: %b\r\n" % tier.encode()
        origin = named.get(b"origin")
        return lines if origin is None else lines + self._cors.headers_for(origin)

    def _headers_out(self, named: Mapping[bytes, bytes], settlement: Settlement, size: int, rank: int = 0) -> bytes:
        lines = b"content-type: %b\r\nx-request-id: %b\r\ncontent-length: %d\r\n" % (
            named.get(b"content-type", b"application/json"),
            settlement.request_id.encode(),
            size,
        )
        if rank:
            lines += b"x-vllm-priority: %d\r\n" % (rank * self.config.priority_step)
        for name in _PASSED:
            value = named.get(name)
            if value is not None:
                lines += b"%b: %b\r\n" % (name, value)
        return lines + b"\r\n"

    def _extra(self, tenant: Tenant) -> bytes:
        """Members put in front of every body: the tenant's own salt of the prefix cache."""
        salt = self._salts.get(tenant.tenant_id)
        if salt is None:
            digest = hashlib.blake2b(tenant.tenant_id.encode(), key=self.config.salt[:64], digest_size=16).hexdigest()
            salt = self._salts[tenant.tenant_id] = b'"cache_salt":"%b",' % digest.encode()
        return salt

    def _next_id(self) -> RequestId:
        self._count += 1
        return RequestId(f"{self._prefix}-{self._count:08x}")


def _read_deadline(value: bytes | None) -> float | None:
    """Seconds of ``x-sluice-deadline-ms``."""
    if value is None:
        return None
    if not value.isdigit() or len(value) > 12:
        raise _Refused(
            Outcome.MALFORMED, "The header 'x-sluice-deadline-ms' must be a whole number of milliseconds.",
            "x-sluice-deadline-ms",
        )  # fmt: skip
    return int(value) / 1000.0
