"""What the core knows of a request: sizes and moments, never its text."""

from service.domain.units import RequestId, TenantId, TierName, WorkerId
from service.domain.value import value


@value
class Request:
    """One inference request at the moment it asks to be admitted.

    ``prompt_bytes`` is the size of the body as received; ``max_output_tokens`` is the client's own bound or ``None``.
    ``deadline_at`` is the latest moment at which it may still be waiting in the queue, ``hinted`` whether that is the
    client's own wish, earlier than what we would allow. ``session`` is an opaque hash
    of tenant and the client's affinity hint. ``pinned_to`` names the only worker that can serve it (the one that holds
    the conversation it continues). ``prefix`` are marks of the prompt's beginnings, from the
    shortest on: how many bytes it covers in the upper bits, a hash of these and of the tenant in the lower 32.
    ``excess``: it is above what its contract counts, whatever room its worker-seconds have.
    """

    request_id: RequestId
    tenant_id: TenantId
    tier: TierName
    rank: int
    prompt_bytes: int
    max_output_tokens: int | None
    stream: bool
    arrived_at: float
    deadline_at: float
    session: str | None = None
    pinned_to: WorkerId | None = None
    prefix: tuple[int, ...] = ()
    hinted: bool = False
    excess: bool = False
