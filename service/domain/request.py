"""What the core knows of a request: sizes and moments, never its text."""

from service.domain.units import RequestId, TenantId, TierName, WorkerId
from service.domain.value import value


@value
class Request:
    """One inference request at the moment it asks to be admitted.

    ``prompt_bytes`` is the size of the body as received; ``max_output_tokens`` is the client's own bound or ``None``.
    ``deadline_at`` is the latest moment at which it may still be waiting in the queue. ``session`` is an opaque hash
    of tenant and the client's affinity hint. ``pinned_to`` names the only worker that can serve it (the one that holds
    the conversation it continues).
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
