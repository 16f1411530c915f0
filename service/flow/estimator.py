"""Estimates what a request will cost, without a tokenizer, and learns from what requests turned out to cost."""

from collections import OrderedDict
from dataclasses import dataclass

from service.domain.estimate import Estimate
from service.domain.request import Request
from service.domain.units import TenantId

FIRST_BYTES_PER_TOKEN = 3.2
"""Bytes of a JSON body per prompt token before anything was learned: a guess between English text (about 4) and code
or CJK (2-3)."""

FIRST_OUTPUT_TOKENS = 211.0
"""Mean output of the Azure 2023 conversation trace, for requests that do not bound themselves."""

_WEIGHT = 0.05
_TENANTS_MAX = 10_000
_TAUGHT = 64
"""Answers from which every one of a tenant is learned."""


@dataclass(slots=True)
class _Habits:
    bytes_per_token: float
    output_tokens: float
    seen: int = 0


class Estimator:
    """Per tenant, shrunk towards what all tenants do: n / (n + 20) of a tenant's own habits count.

    At most 10,000 tenants are remembered, those not seen for longest are forgotten.

    Trade-offs: a mean, so one tenant with two kinds of traffic is estimated between them; images count by their
    encoded bytes until the worker has reported what they cost.
    """

    def __init__(self) -> None:
        self._all = _Habits(FIRST_BYTES_PER_TOKEN, FIRST_OUTPUT_TOKENS)
        self._tenants: OrderedDict[TenantId, _Habits] = OrderedDict()

    def estimate(self, request: Request) -> Estimate:
        """Predict prompt and output tokens of ``request``; never fails."""
        everybody = self._all
        bytes_per_token, output = everybody.bytes_per_token, everybody.output_tokens
        own = self._tenants.get(request.tenant_id)
        if own is not None:
            share = own.seen / (own.seen + 20.0)
            bytes_per_token += share * (own.bytes_per_token - bytes_per_token)
            output += share * (own.output_tokens - output)
        bound = request.max_output_tokens
        if bound is not None and bound < output:
            output = bound
        return Estimate(int(request.prompt_bytes / bytes_per_token) + 1, max(int(output), 1))

    def observe(self, request: Request, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Learn from an answer that was completed."""
        own = self._tenants.get(request.tenant_id)
        if own is None:
            own = self._tenants[request.tenant_id] = _Habits(self._all.bytes_per_token, self._all.output_tokens)
            if len(self._tenants) > _TENANTS_MAX:
                self._tenants.popitem(last=False)
        else:
            self._tenants.move_to_end(request.tenant_id)
        own.seen += 1
        if own.seen > _TAUGHT and own.seen & 3:
            return  # its habits are known: every fourth answer keeps them fresh
        weight = max(_WEIGHT, 1.0 / own.seen)
        for habits, step in ((own, weight), (self._all, _WEIGHT)):
            if prompt_tokens:
                ratio = request.prompt_bytes / prompt_tokens
                habits.bytes_per_token += step * (min(max(ratio, 0.1), 1e4) - habits.bytes_per_token)
            if output_tokens is not None:
                habits.output_tokens += step * (output_tokens - habits.output_tokens)
