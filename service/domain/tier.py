"""What a tier (SLA class) promises."""

from dataclasses import dataclass

from service.domain.units import TierName


@dataclass(frozen=True, slots=True)
class Tier:
    """One SLA class.

    ``rank`` orders tiers, 0 is the dearest. ``ttft_targets_s`` maps an upper bound of prompt tokens to seconds until
    the first token (first edge that fits, ascending); ``tpot_target_s`` is the mean time per output token after the
    first. ``None`` or an empty table means that nothing is promised.
    """

    name: TierName
    rank: int
    best_effort: bool = False
    availability: float | None = None
    attainment: float | None = None
    ttft_targets_s: tuple[tuple[int, float], ...] = ()
    tpot_target_s: float | None = None
    queue_ttl_s: float | None = None
