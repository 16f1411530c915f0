"""Reads what a client may wish for its own request: less time than it would be given, and the same worker again."""

import hashlib
from collections.abc import Mapping

from service.domain.outcome import Outcome
from service.domain.units import TenantId
from service.domain.value import value
from service.gateway.headers import read_deadline_s
from service.gateway.refusal import Refused

DEADLINE, SESSION = b"x-sluice-deadline-ms", b"x-sluice-session"


@value
class Hints:
    """``limit_at``: the client's own moment by which the first token must come; ``hinted``: that is earlier than what
    it would be given; ``session`` is hashed with the tenant."""

    limit_at: float | None = None
    hinted: bool = False
    session: str | None = None


NO_HINTS = Hints()


def read_hints(
    named: Mapping[bytes, bytes], tenant_id: TenantId, arrived_at: float, budget_s: float
) -> tuple[Hints, float]:
    """The hints of a request that may wait for ``budget_s``, and for how long it may wait with them.

    Raises:
        Refused: the deadline is no number.
    """
    limit_at: float | None = None
    hinted = False
    session: str | None = None
    if DEADLINE in named:
        deadline_s = read_deadline_s(named[DEADLINE])
        if deadline_s is None:
            message = "The header 'x-sluice-deadline-ms' must be a whole number of milliseconds."
            raise Refused(Outcome.MALFORMED, message, "x-sluice-deadline-ms")
        limit_at = arrived_at + deadline_s
        hinted, budget_s = deadline_s < budget_s, min(budget_s, deadline_s)
    if SESSION in named:
        session = hashlib.blake2b(named[SESSION], key=tenant_id.encode()[:64], digest_size=16).hexdigest()
    return Hints(limit_at, hinted, session), budget_s
