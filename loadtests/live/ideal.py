"""Computes what no gateway can beat: strict priority by tier at the engine's measured peak, in closed form.

A fluid model. P_t = requests of tier t per second that meet their targets when the engine serves nothing else, at its
best concurrency (measured). A request of tier t so takes 1/P_t of the engine's second. Tiers are served in the order of
rank; tier t, offered r_t per second, gets what the better ones have left:

    served_t = min(r_t, left * P_t)        left := left - served_t / P_t        left = 1 at the start
    attainment_t = served_t / r_t          goodput = sum of served_t

Trade-offs: inside a tier all shapes are served alike; choosing short requests first could count more of them, and so
could a lucky window, so a measured figure may lie a little above. Waiting times do not appear: a queue that is as short
as the targets allow costs nothing in a fluid.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ANCHOR_RATIO = 39.0 / 51.0
"""1x as a share of the engine's peak: 39 a second offered to an engine of 51 (anchors.md)."""


@dataclass(frozen=True)
class Ideal:
    """The bound at one load."""

    attainment: dict[str, float]
    goodput_rps: float


def compute_ideal(offered_rps: Mapping[str, float], peak_rps: Mapping[str, float]) -> Ideal:
    """The bound for rates by tier, in the order of rank, and peaks by tier."""
    left, goodput, attainment = 1.0, 0.0, {}
    for tier, rate in offered_rps.items():
        served = min(rate, left * peak_rps[tier])
        left = max(0.0, left - served / peak_rps[tier])
        attainment[tier] = served / rate if rate else 1.0
        goodput += served
    return Ideal(attainment, goodput)


def compute_mix_peak(shares: Mapping[str, float], peak_rps: Mapping[str, float]) -> float:
    """Requests per second of the whole mix at which the engine is just full: 1 / sum of share_t / P_t."""
    return 1.0 / sum(share / peak_rps[tier] for tier, share in shares.items())


def compute_peak(levels: Sequence[Mapping[str, float]]) -> float:
    """The best goodput of a closed-loop ramp."""
    return max(level["goodput_rps"] for level in levels)
