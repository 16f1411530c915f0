"""Short builders for the tests of the flow core: a request, a worker that is ready, a controller that has both."""

import random
from collections.abc import Iterable

from service.domain.command import Command
from service.domain.estimate import Estimate
from service.domain.event import RequestArrived, WorkerHealthChanged, WorkerJoined
from service.domain.request import Request
from service.domain.units import RequestId, TenantId, TierName, WorkerId
from service.flow.config import FlowConfig
from service.flow.controller import FlowController
from service.flow.waiting import Waiting


def build_request(
    name: str,
    *,
    arrived_at: float = 0.0,
    ttl_s: float = 10.0,
    prompt_bytes: int = 320,
    max_output_tokens: int | None = None,
    pinned_to: str | None = None,
    tenant: str = "tenant",
    tier: str = "standard",
    rank: int = 1,
    deadline_at: float | None = None,
    hinted: bool = False,
    stream: bool = True,
    prefix: tuple[int, ...] = (),
) -> Request:
    """A request that may wait ``ttl_s``; by default 100 tokens of prompt."""
    return Request(
        RequestId(name),
        TenantId(tenant),
        TierName(tier),
        rank,
        prompt_bytes,
        max_output_tokens,
        stream,
        arrived_at,
        arrived_at + ttl_s if deadline_at is None else deadline_at,
        None,
        None if pinned_to is None else WorkerId(pinned_to),
        prefix,
        hinted=hinted,
    )


def build_entry(
    name: str,
    *,
    sequence: int = 0,
    band: int = 1,
    tokens: int = 100,
    hold_s: float = 1.0,
    work_s: float = 1.0,
    due_at: float | None = None,
    tpot_s: float | None = None,
    failed_on: Iterable[str] = (),
    **how: float | int | str | tuple[int, ...] | None,
) -> Waiting:
    """A request that waits; ``how`` goes to :func:`build_request`."""
    request = build_request(name, **how)  # type: ignore[arg-type]
    failed = frozenset(map(WorkerId, failed_on))
    give_up_at = request.deadline_at if due_at is None else min(due_at, request.deadline_at)
    return Waiting(
        request, Estimate(tokens, 50), band, due_at, give_up_at, hold_s, work_s, sequence, tpot_s, failed_on=failed
    )


def build_controller(
    workers: Iterable[str] = ("a",), config: FlowConfig | None = None, seed: int = 1
) -> FlowController:
    """A controller with healthy ``workers``."""
    controller = FlowController(config or FlowConfig(requests_per_worker=1), random.Random(seed))
    for name in workers:
        controller.handle(WorkerJoined(WorkerId(name)), 0.0)
        controller.handle(WorkerHealthChanged(WorkerId(name), True), 0.0)
    return controller


def arrive(controller: FlowController, name: str, now: float = 0.0, **how: float | int | str | None) -> list[Command]:
    """Let request ``name`` arrive; ``how`` goes to :func:`build_request`."""
    request = build_request(name, arrived_at=now, **how)  # type: ignore[arg-type]
    return controller.handle(RequestArrived(request), now)
