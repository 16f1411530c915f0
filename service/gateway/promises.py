"""What the corridor needs to know of the service: its model, its tiers, its secrets."""

from collections.abc import Mapping

from service.domain.tier import Tier
from service.domain.units import TierName
from service.domain.value import value


@value
class CorridorConfig:
    """What the edge needs to know of the service. ``priority_step``: vLLM priority per rank of a tier; ``salt``: the
    secret behind each tenant's ``cache_salt``, the same on every replica; ``worker_key``: what workers ask for."""

    model: str
    tiers: Mapping[TierName, Tier]
    queue_ttl_s: float = 30.0
    priority_step: int = 10
    salt: bytes = b""
    worker_key: bytes = b""
