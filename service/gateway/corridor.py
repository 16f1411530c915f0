"""One inference request at the edge: request, auth, peek; then its journey; whatever happens, one settlement."""

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from zlib import crc32

from service.domain.outcome import Outcome
from service.domain.request import Request
from service.domain.tenant import Tenant
from service.domain.tier import Tier
from service.domain.units import RequestId, WorkerId
from service.flow.quota import Passage
from service.gateway.auth import Known, read_key
from service.gateway.cors import CorsPolicy
from service.gateway.exchange import Exchange
from service.gateway.headers import render_outbound
from service.gateway.hints import DEADLINE, NO_HINTS, SESSION, Hints, read_hints
from service.gateway.limits import check_passage
from service.gateway.members import PeekError
from service.gateway.own_lines import OwnLines
from service.gateway.peek import Peeked, peek
from service.gateway.prefix import LEAST_BYTES, find_marks
from service.gateway.promises import CorridorConfig
from service.gateway.refusal import Failing, Refused, check_body
from service.gateway.responses import OPENAI, SUSPENDED, telling_of
from service.gateway.routes import RESPONSE_PREFIX, ROUTES, STORED, Route
from service.gateway.salts import CacheSalts
from service.gateway.service_tier import choose_tier, find_tier, note_tier
from service.gateway.stored import StoredResponses, read_response_path, start_stored
from service.runtime.account import Settlement
from service.runtime.advice import compute_retry_after_s
from service.runtime.guard import guard
from service.runtime.journey import Journey, Outbound, Road
from service.runtime.limits import RelayConfig
from service.runtime.ports import TenantDirectory
from service.runtime.quota import Quotas

_log = logging.getLogger("sluice.corridor")


class Corridor:
    """Serves inference routes. Called by the listener; nothing here awaits."""

    def __init__(
        self, road: Road, directory: TenantDirectory, quotas: Quotas, config: CorridorConfig, cors: CorsPolicy
    ) -> None:
        self._road = road
        self._directory = directory
        self._quotas = quotas
        self.lines = OwnLines(cors)
        self._stored = StoredResponses()
        self._now = road.clock.now
        self._prefix = secrets.token_hex(4) + "-"
        self._count = 0
        self._salts = CacheSalts(config.salt)
        self.note_opened: Callable[[Settlement], None] | None = None
        self.config = config

    def reconfigure(self, config: CorridorConfig, cors: CorsPolicy, relay: RelayConfig) -> None:
        """Requests that come from now on are served by these; those under way keep what they began with."""
        road = self._road
        self._road = Road(road.driver, road.transport, road.accounts, road.clock, road.later, relay, road.opaque)
        self.lines.cors = cors
        self.config = config

    # ---------------------------------------------------------------- word from the listener

    def find_route(self, method: bytes, raw_path: bytes) -> Route | None:
        """The route of an inference path; ``None`` for all others."""
        route = ROUTES.get(raw_path)
        if route is not None and method == b"POST":
            return route
        path = raw_path.partition(b"?")[0]
        if method == b"POST" and path in ROUTES:
            return ROUTES[path]
        if path.startswith(RESPONSE_PREFIX) and read_response_path(method, path) is not None:
            return STORED
        return None

    def on_head(self, exchange: Exchange) -> None:
        """A large body is announced: whoever may not send it hears so now."""
        guard(Failing(self, exchange), "a request whose head has come", self._hear_head, exchange)

    def _hear_head(self, exchange: Exchange) -> None:
        settlement = self._open(exchange)
        try:
            self._authenticate(exchange, settlement)
            check_body(exchange)
        except Refused as refused:
            self._refuse(exchange, settlement, refused)
            return
        if exchange.expects_continue:
            exchange.send_continue()

    def on_request(self, exchange: Exchange) -> None:
        """The request is complete."""
        settlement = exchange.settlement or self._open(exchange)
        try:
            if exchange.route is STORED:
                self._serve_stored(exchange, settlement)
            else:
                self._serve(exchange, settlement)
        except Refused as refused:
            self._refuse(exchange, settlement, refused)
        except Exception:  # noqa: BLE001 - around one request: a fault of ours ends this one and no other
            _log.exception("request %s failed at the edge", settlement.request_id)
            self.end_at_fault(exchange)

    def on_body_missing(self, exchange: Exchange, outcome: Outcome) -> None:
        """The client was too slow to send its body, or the gateway goes away before it is here."""
        guard(Failing(self, exchange), "a request whose body is missing", self._end, exchange, outcome)

    def on_client_gone_early(self, exchange: Exchange) -> None:
        """The client left before its request was complete."""
        guard(Failing(self, exchange), "a request left early", self._end, exchange, Outcome.CLIENT_GONE_EARLY)

    def _end(self, exchange: Exchange, outcome: Outcome) -> None:
        settlement = exchange.settlement or self._open(exchange)
        if outcome is Outcome.CLIENT_GONE_EARLY:
            self._road.accounts.settle(settlement, outcome, self._now())
        else:
            self._refuse(exchange, settlement, Refused(outcome))

    def end_at_fault(self, exchange: Exchange) -> None:
        """Our own code failed it."""
        listener = exchange.listener
        if isinstance(listener, Journey):
            listener.on_fault()
        else:
            self._refuse(exchange, exchange.settlement or self._open(exchange), Refused(Outcome.GATEWAY_FAULT))

    @property
    def client_stall_s(self) -> float:
        """How long a client may refuse to read."""
        return self._road.relay.client_stall_s

    # ---------------------------------------------------------------- stages

    def _open(self, exchange: Exchange) -> Settlement:
        self._count += 1
        request_id = RequestId(f"{self._prefix}{self._count}")
        exchange.settlement = settlement = Settlement(request_id, exchange.route.kind, self._now())
        if self.note_opened is not None:
            self.note_opened(settlement)
        return settlement

    def _serve(self, exchange: Exchange, settlement: Settlement) -> None:
        route: Route = exchange.route
        named = exchange.named
        tenant = self._authenticate(exchange, settlement)
        if exchange.body_fault is not None or exchange.over_limit or b"content-encoding" in named:
            check_body(exchange)
        body = exchange.body
        settlement.prompt_bytes = len(body)
        extra = self._salts[tenant.tenant_id] if route.salted else b""
        response_id = ""
        if route.names_response:
            response_id = "resp_" + secrets.token_hex(16)
            extra += b'"request_id":"%b",' % response_id.encode()
        try:
            peeked = peek(body, route.usage_on_request, extra, route.model_required, route.bounds)
        except PeekError as error:
            raise Refused(Outcome.MALFORMED, error.message, error.param) from None
        if peeked.stream:
            settlement.stream = True
        pinned_to = self._check(peeked, route, tenant)
        tier = find_tier(tenant.tier, self.config.tiers)
        if peeked.service_tier is not None:
            tier = choose_tier(tier, peeked.service_tier, self.config.tiers)
            note_tier(settlement, tier)
        hints, budget_s = NO_HINTS, tier.queue_ttl_s or self.config.queue_ttl_s
        if DEADLINE in named or SESSION in named:
            hints, budget_s = read_hints(named, tenant.tenant_id, settlement.arrived_at, budget_s)
        request = Request(
            settlement.request_id, tenant.tenant_id, tier.name, tier.rank,
            settlement.prompt_bytes, peeked.max_output_tokens, peeked.stream,
            settlement.arrived_at, settlement.arrived_at + budget_s, hints.session, pinned_to,
            find_marks(peeked.fields, crc32(tenant.tenant_id.encode())) if len(body) >= LEAST_BYTES else (),
            hinted=hints.hinted,
        )  # fmt: skip
        self._go_on(exchange, settlement, tenant, tier, peeked, request, hints, response_id)

    def _go_on(
        self, exchange: Exchange, settlement: Settlement, tenant: Tenant, tier: Tier, peeked: Peeked, request: Request,
        hints: Hints, response_id: str,
    ) -> None:  # fmt: skip
        """Past the tenant's limits, or put aside until they are known, and on its way."""
        route, named, contract = exchange.route, exchange.named, tenant.contract
        if contract is not None and contract.limited:
            passage = self._quotas.admit(tenant, contract, request, settlement, route.metered, tier.best_effort)
            if passage is Passage.LATER:
                again = partial(
                    self._go_on_again, exchange, settlement, tenant, tier, peeked, request, hints, response_id
                )
                self._quotas.put_aside(settlement, again)
                return
            check_passage(passage, contract, settlement.arrived_at, self._quotas.month_ends_in_s)
            if settlement.excess:
                request = replace(request, excess=True)
        exchange.body = b""  # from here on it lives in the parts, as long as a worker may need it
        parts = peeked.parts
        size = len(parts[0]) if len(parts) == 1 else sum([len(part) for part in parts])
        config = self.config
        priority = tier.rank * config.priority_step
        lines = render_outbound(named, exchange.headers, request.request_id, size, priority, config.worker_key)
        out = Outbound(route.target, lines, parts, peeked.strip_usage)
        head = self.lines.render(named, settlement, tier.name)
        dialect = route.dialect if peeked.service_tier is None else route.dialect.serving(tier.name)
        exchange.listener = journey = Journey(self._road, request, out, exchange, dialect, head, settlement)
        if hints.limit_at is not None:
            journey.first_token_limit_at = hints.limit_at
        if response_id and peeked.store:
            journey.on_answered = partial(self._stored.remember, response_id, tenant.tenant_id)
        journey.start()

    def _go_on_again(self, exchange: Exchange, settlement: Settlement, *rest: Any) -> None:  # noqa: ANN401 - _go_on's own
        """The store has spoken, or will not speak in time."""
        if settlement.outcome is None:  # else its client left meanwhile
            guard(
                Failing(self, exchange), "a request that waited for its quota", self._try_on, exchange, settlement, rest
            )

    def _try_on(self, exchange: Exchange, settlement: Settlement, rest: tuple[Any, ...]) -> None:
        try:
            self._go_on(exchange, settlement, *rest)
        except Refused as refused:
            self._refuse(exchange, settlement, refused)

    def _serve_stored(self, exchange: Exchange, settlement: Settlement) -> None:
        """GET or cancel a stored response at the worker that made it, past queue and permits."""
        tenant = self._authenticate(exchange, settlement)
        check_body(exchange)
        found = read_response_path(exchange.method, exchange.raw_path)
        worker_id = None if found is None else self._stored.worker_of(found[0], tenant)
        if found is None or worker_id is None:
            raise Refused(Outcome.UNKNOWN_RESPONSE)
        head = self.lines.render(exchange.named, settlement, tenant.tier)
        start_stored(self._road, exchange, settlement, tenant, found, worker_id, head, self.config.worker_key)

    def _authenticate(self, exchange: Exchange, settlement: Settlement) -> Tenant:
        named, known, generation = exchange.named, exchange.known, self._directory.generation
        said, also = named.get(b"authorization"), named.get(b"x-api-key")
        alone = len(named) == len(exchange.headers)  # else there may be two stories
        if alone and known is not None and known.is_still_true(said, also, generation):
            tenant = known.tenant
        else:
            key = read_key(exchange.headers)
            found = None if key is None else self._directory.find(key)
            if found is None:
                raise Refused(Outcome.UNAUTHENTICATED)
            tenant = found
            exchange.known = Known(said, also, tenant, generation) if alone else None
        settlement.tenant_id = tenant.tenant_id
        settlement.tier = tenant.tier
        settlement.marks = tenant.marks
        if tenant.suspended:
            raise Refused(Outcome.FORBIDDEN, SUSPENDED)
        return tenant

    def _check(self, peeked: Peeked, route: Route, tenant: Tenant) -> WorkerId | None:
        """Whether the model may be used; the worker that must serve it, if only one can."""
        model = peeked.model
        if model != self.config.model and (model or route.model_required):
            raise Refused(Outcome.UNKNOWN_MODEL, f"The model {model[:128]!r} does not exist here.", "model")
        if tenant.models and self.config.model not in tenant.models:
            raise Refused(Outcome.FORBIDDEN, "The model is not in this tenant's contract.", "model")
        if peeked.previous_response_id is None or not route.names_response:
            return None
        worker_id = self._stored.worker_of(peeked.previous_response_id, tenant)
        if worker_id is None:
            raise Refused(Outcome.UNKNOWN_RESPONSE, None, "previous_response_id")
        return worker_id

    # ---------------------------------------------------------------- pieces

    def _refuse(self, exchange: Exchange, settlement: Settlement, refused: Refused) -> None:
        outcome = refused.outcome
        if not exchange.gone and not exchange.response_started:
            retry_after_s = refused.retry_after_s
            if retry_after_s is None and outcome.retryable:
                retry_after_s = compute_retry_after_s(settlement.arrived_at)
            dialect = exchange.route.dialect if exchange.route is not None else OPENAI
            status, lines, body = dialect.build_refusal(outcome, retry_after_s, refused.detail, refused.param)
            settlement.status = telling_of(outcome).status
            exchange.begin(status, lines + self.lines.render(exchange.named, settlement, None), len(body))
            exchange.write(body)
            exchange.finish()
        self._road.accounts.settle(settlement, outcome, self._now())
