"""Short builders for the tests of the flow core: a request, a worker that is ready, a controller that has both."""

import random
from collections.abc import Iterable

from service.domain.command import Command
from service.domain.event import RequestArrived, WorkerHealthChanged, WorkerJoined
from service.domain.request import Request
from service.domain.units import RequestId, TenantId, TierName, WorkerId
from service.flow.config import FlowConfig
from service.flow.controller import FlowController


def build_request(
    name: str,
    *,
    arrived_at: float = 0.0,
    ttl_s: float = 10.0,
    prompt_bytes: int = 320,
    max_output_tokens: int | None = None,
    pinned_to: str | None = None,
) -> Request:
    """A request that may wait ``ttl_s``; by default 100 tokens of prompt."""
    return Request(
        RequestId(name),
        TenantId("tenant"),
        TierName("standard"),
        1,
        prompt_bytes,
        max_output_tokens,
        True,
        arrived_at,
        arrived_at + ttl_s,
        None,
        None if pinned_to is None else WorkerId(pinned_to),
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
