"""Computes how long one engine step takes (the formula stands in ``profiles.StepCost``)."""

from __future__ import annotations

import math
import random

from service.emulator.profiles import StepCost


class StepClock:
    """The step time of one engine; chance comes from the generator given."""

    __slots__ = ("_cost", "_mu", "_random", "_sigma")

    def __init__(self, cost: StepCost, chance: random.Random) -> None:
        self._cost = cost
        self._random = chance
        # A lognormal with mean 1 and coefficient of variation c has sigma^2 = ln(1 + c^2) and mu = -sigma^2 / 2.
        self._sigma = math.sqrt(math.log1p(cost.noise_cv**2))
        self._mu = -(self._sigma**2) / 2.0

    def compute_duration(
        self, verified_tokens: int, kv_tokens: int, prefill_tokens: int, context_products: float, factor: float
    ) -> float:
        """Seconds for a step. ``verified_tokens`` = d * (1 + K); ``context_products`` = sum of p * ctx."""
        cost = self._cost
        seconds = (
            cost.base_s
            + cost.per_token_s * verified_tokens
            + cost.per_mega_kv_s * kv_tokens * 1e-6
            + cost.per_prefill_token_s * prefill_tokens
            + cost.per_prefill_context_s * context_products
        )
        if self._sigma:
            seconds *= math.exp(self._mu + self._sigma * self._random.gauss(0.0, 1.0))
        if cost.stall_probability and self._random.random() < cost.stall_probability:
            seconds += self._random.expovariate(1.0) * cost.stall_mean_s
        return seconds * factor
