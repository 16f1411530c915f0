"""Estimates what a request will cost, without a tokenizer, and learns from what requests turned out to cost."""

from collections import OrderedDict

from service.domain.estimate import Estimate
from service.domain.request import Request
from service.domain.units import TenantId
from service.flow.lengths import OutputLengths, Source

FIRST_BYTES_PER_TOKEN = 3.2
"""Bytes of a JSON body per prompt token before anything was learned: a guess between English text (about 4) and code
or CJK (2-3)."""

_WEIGHT = 0.05
_PSEUDO_ANSWERS = 20.0
_TENANTS_MAX = 10_000
_TAUGHT, _LOOKED_AT = 64, 6
"""Of a tenant's first answers every one is learned from, of those that follow every sixth."""


class _Habits:
    """What one tenant's requests have in common. ``blended`` is its bytes per token, shrunk towards everybody's."""

    __slots__ = ("blended", "bytes_per_token", "lengths", "seen")

    def __init__(self, bytes_per_token: float, lengths: Source) -> None:
        self.bytes_per_token = self.blended = bytes_per_token
        self.lengths = lengths
        self.seen = 0


class Estimator:
    """Per tenant, shrunk towards what all tenants do: n / (n + 20) of a tenant's own habits count.

    At most 10,000 tenants are remembered, those not seen for longest are forgotten.

    Trade-offs: one tenant with two kinds of traffic is estimated between them; images count by their encoded bytes
    until the worker has reported what they cost.
    """

    def __init__(self) -> None:
        self._bytes_per_token = FIRST_BYTES_PER_TOKEN
        self._lengths = OutputLengths()
        self._tenants: OrderedDict[TenantId, _Habits] = OrderedDict()

    def estimate(self, request: Request) -> Estimate:
        """Predict prompt and output tokens of ``request``; never fails."""
        own = self._tenants.get(request.tenant_id)
        if own is not None:
            bytes_per_token, curve = own.blended, own.lengths.curve
        else:
            bytes_per_token, curve = self._bytes_per_token, self._lengths.find_curve(request.tier)
        bound = request.max_output_tokens
        if bound is None:
            output = int(curve.mean)
        else:
            output = int(curve.within if bound == curve.bound else curve.mean_within(bound))
        return Estimate(int(request.prompt_bytes / bytes_per_token) + 1, max(output, 1))

    def foresee(self, request: Request, level: float) -> Estimate:
        """Prompt tokens of ``request``, and the output tokens that a share ``level`` of such answers stays within."""
        own = self._tenants.get(request.tenant_id)
        curve = own.lengths.curve if own is not None else self._lengths.find_curve(request.tier)
        bytes_per_token = own.blended if own is not None else self._bytes_per_token
        output = curve.long(level)
        bound = request.max_output_tokens
        if bound is not None and bound < output:
            output = float(bound)
        return Estimate(int(request.prompt_bytes / bytes_per_token) + 1, max(int(output), 1))

    def observe(self, request: Request, prompt_tokens: int | None, output_tokens: int | None) -> None:
        """Learn from an answer that was completed; one that came to the client's own bound was cut off there."""
        own = self._find(request)
        own.seen += 1
        stands_for = 1
        if own.seen > _TAUGHT:
            if own.seen % _LOOKED_AT:
                return  # its habits are known: an answer now and then keeps them fresh
            stands_for = _LOOKED_AT
        if prompt_tokens:
            ratio = min(max(request.prompt_bytes / prompt_tokens, 0.1), 1e4)
            self._bytes_per_token += _WEIGHT * (ratio - self._bytes_per_token)
            own.bytes_per_token += max(_WEIGHT, 1.0 / own.seen) * (ratio - own.bytes_per_token)
        share = own.seen / (own.seen + _PSEUDO_ANSWERS)
        own.blended = self._bytes_per_token + share * (own.bytes_per_token - self._bytes_per_token)
        if output_tokens is not None:
            bound = request.max_output_tokens
            cut = bound is not None and output_tokens >= bound
            self._lengths.observe(own.lengths, request.tier, output_tokens, cut, stands_for)

    def observe_cut(self, request: Request, output_tokens: int) -> None:
        """Learn from an answer that ended early, after so many tokens, because somebody did not want the rest."""
        own = self._find(request)
        self._lengths.observe(own.lengths, request.tier, output_tokens, cut=True, stands_for=1)

    def _find(self, request: Request) -> _Habits:
        own = self._tenants.get(request.tenant_id)
        if own is None:
            own = _Habits(self._bytes_per_token, self._lengths.open_tenant(request.tier))
            self._tenants[request.tenant_id] = own
            if len(self._tenants) > _TENANTS_MAX:
                self._tenants.popitem(last=False)
        else:
            self._tenants.move_to_end(request.tenant_id)
        return own
