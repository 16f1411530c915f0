"""Decides how many workers a pool needs, and says why.

Demand is counted in workers: worker-seconds of work *offered* per second, refused work among it, because what is shed
hides demand. By class: G within contracts, X beyond them, BE best effort.

    forecast  ceil((Ghat(t+L) + z * sigma + bx * Xhat(t+L) + be * BE) / rho)
    reactive  ceil(max((G + bx * X + W/T) / rho_hi, n * kv / kv_hi, n * slots / rho_hi))
    burn      ceil(1.5 n) if the capacity budget burns 14.4x over 1 h and 5 min, n + 1 if 6x over 6 h and 30 min
    wanted    max of the three, and the spare; between the least and the most
    down      one worker per slot of 5 minutes, if nothing more was wanted for half an hour, the rest would be no more
              than rho - 0.05 full, no budget burns and no worker is on its way

L is the time from the wish for a worker to its first token. rho, how full workers are planned, follows the slow budget:
a budget that is not spent over three days is headroom nobody needs, one that is overspent is headroom that lacks.
Burn alone is too late for cold starts of ten minutes (a total failure of a 99 % objective is seen after 8.6 minutes),
so it is a ratchet over a wrong model and no more: one raise per lead time, until its effect can be seen.

Missing is ``None``: what is not known lowers nothing. After data has been missing the target holds for as long as after
a peak. Since a fall needs half an hour without a greater wish and a rise none, the target turns at most four times an
hour.

*Trade-offs*: work beyond contracts is planned for in part only, since it is what gives way while workers start; a pool
whose contracts leave nothing beyond them needs a greater ``spare``.
"""

from collections import deque
from dataclasses import dataclass, field
from math import ceil

from service.slo.forecast import Forecast, ForecastConfig
from service.slo.reading import Burn, Demand, Reading, clean, count_workers

FAST_BURN, SLOW_BURN = 14.4, 6.0
"""Factors of the two paging pairs (SRE workbook, ch. 5): 2 % of a month's budget in an hour, 5 % in six."""


@dataclass(frozen=True, slots=True)
class ScalingConfig:
    """Bounds and weights; ratios are 0..1, lengths seconds. Guesses are measured by ``loadtests.sim.day``."""

    workers_least: int = 1
    workers_most: int = 64
    spare: int = 1
    lead_s: float = 660.0
    """P95 of a cold start, plus a minute for those who carry the decision out."""
    use_forecast: bool = True
    forecast: ForecastConfig = field(default_factory=ForecastConfig)
    sigmas: float = 0.5
    excess_weight: float = 0.25
    best_effort_weight: float = 0.0
    full_ratio: float = 0.85
    full_ratio_least: float = 0.6
    full_ratio_most: float = 0.95
    reactive_ratio: float = 0.9
    kv_ratio_high: float = 0.85
    queue_drain_s: float = 60.0
    hold_s: float = 1800.0
    slot_s: float = 300.0
    fall_margin_ratio: float = 0.05
    stale_s: float = 90.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What each term asks for, in workers; ``None`` where it cannot be known."""

    forecast: int | None
    reactive: int | None
    burn: int | None


@dataclass(frozen=True, slots=True)
class Decision:
    """How many workers there should be. ``target`` is ``None`` only while nothing has ever been known."""

    target: int | None
    wanted: int | None
    parts: Parts
    complete: bool
    reasons: tuple[str, ...]
    foreseen: float | None = None
    sigma: float | None = None
    full_ratio: float | None = None


@dataclass(slots=True)
class _Memory:
    guaranteed: Forecast
    excess: Forecast
    target: int | None = None
    wishes: deque[tuple[float, int]] = field(default_factory=deque)
    """(moment, wish), greatest first: the maximum over the hold is the first."""
    known_since: float | None = None
    slot: int = 0
    raised_at: float | None = None
    burn_raise: tuple[float, int] | None = None


class Scaling:
    """One pool's law with its memory: a fold over readings, so that whoever reads the same readings says the same."""

    def __init__(self, config: ScalingConfig) -> None:
        self._config = config
        self._memory = _Memory(
            Forecast(config.forecast, config.lead_s), Forecast(config.forecast, config.lead_s)
        )  # fmt: skip

    @property
    def forecast(self) -> Forecast:
        """The forecast of what is guaranteed."""
        return self._memory.guaranteed

    def remember(self, at: float, demand: Demand) -> None:
        """An earlier period's demand, known before the first reading."""
        self._memory.guaranteed.remember(at, demand.guaranteed)
        self._memory.excess.remember(at, demand.excess)

    def decide(self, reading: Reading, now: float) -> Decision:
        """How many workers there should be from ``now`` (seconds since the epoch) on; moments must not go back."""
        config, memory = self._config, self._memory
        known = clean(reading, config.stale_s)
        demand, workers = known.demand, count_workers(known.ready, known.starting)
        if demand is not None:
            memory.guaranteed.observe(now, demand.guaranteed)
            memory.excess.observe(now, demand.excess)
        full_ratio = compute_full_ratio(config, known.burn)
        reasons: list[str] = []
        foreseen, sigma, forecast = self._ask_forecast(demand, full_ratio, reasons)
        reactive = self._ask_reactive(known, workers, reasons)
        burn = self._ask_burn(known.burn, workers, now, reasons)
        parts = Parts(forecast, reactive, burn)
        asked = [part for part in (forecast, reactive, burn) if part is not None]
        complete = demand is not None and workers is not None and known.burn.any_1h is not None
        wanted = None
        if asked:
            wished = max(asked) + config.spare
            wanted = min(max(wished, config.workers_least), config.workers_most)
            reasons.append(f"{wanted} wanted: the greatest of these and {config.spare} to spare")
            if wished > wanted:
                reasons.append(f"no more than {config.workers_most} are allowed")
        self._settle(known, wanted, complete, full_ratio, now, reasons)
        return Decision(memory.target, wanted, parts, complete, tuple(reasons), foreseen, sigma, full_ratio)

    # ---------------------------------------------------------------- the three terms

    def _ask_forecast(
        self, demand: Demand | None, full_ratio: float, reasons: list[str]
    ) -> tuple[float | None, float | None, int | None]:
        config, memory = self._config, self._memory
        within, beyond = memory.guaranteed.foresee(), memory.excess.foresee()
        if not config.use_forecast or demand is None or within is None or beyond is None:
            return None, None, None
        best_effort = config.best_effort_weight * demand.best_effort
        foreseen = within.value + config.excess_weight * beyond.value + best_effort
        margin = config.sigmas * within.sigma
        asked = ceil((foreseen + margin) / full_ratio)
        how = "as at this time of an earlier day" if within.by_pattern else "by its trend"
        reasons.append(
            f"forecast asks for {asked}: {foreseen:.1f} workers' worth of demand foreseen {how} within "
            f"{config.lead_s:.0f} s, {margin:.1f} for errors, {full_ratio * 100:.0f} % full"
        )
        return foreseen, within.sigma, asked

    def _ask_reactive(self, known: Reading, workers: int | None, reasons: list[str]) -> int | None:
        config, asks = self._config, []
        if known.demand is not None:
            now_there = known.demand.guaranteed + config.excess_weight * known.demand.excess
            queued = (known.queued_work_s or 0.0) / config.queue_drain_s
            count = (now_there + queued) / config.reactive_ratio
            asks.append((count, f"{now_there:.1f} workers' worth of demand and {queued:.1f} to drain the queue"))
        if workers is not None and known.kv_ratio is not None:
            asks.append((workers * known.kv_ratio / config.kv_ratio_high, f"KV is {known.kv_ratio * 100:.0f} % full"))
        if workers is not None and known.slots_ratio is not None:
            slots = f"{known.slots_ratio * 100:.0f} % of the permits are held"
            asks.append((workers * known.slots_ratio / config.reactive_ratio, slots))
        if not asks:
            return None
        count, why = max(asks)
        reasons.append(f"the present asks for {ceil(count)}: {why}")
        return ceil(count)

    def _ask_burn(self, burn: Burn, workers: int | None, now: float, reasons: list[str]) -> int | None:
        """A raise is kept while its cause lasts, and made again only when it had time to work."""
        config, memory = self._config, self._memory
        fast = _both(burn.capacity_5m, burn.capacity_1h, FAST_BURN)
        slow = _both(burn.capacity_30m, burn.capacity_6h, SLOW_BURN)
        if not fast and not slow:
            memory.burn_raise = None
            return None
        if memory.burn_raise is not None and now - memory.burn_raise[0] < config.lead_s:
            asked = memory.burn_raise[1]
        elif workers is None:
            return None
        else:
            asked = ceil(1.5 * workers) if fast else workers + 1
            memory.burn_raise = (now, asked)
        pace = f"{FAST_BURN:g}x over 1 h and 5 min" if fast else f"{SLOW_BURN:g}x over 6 h and 30 min"
        reasons.append(f"the budget asks for {asked}: misses for want of capacity burn it more than {pace}")
        return asked

    # ---------------------------------------------------------------- from wish to target

    def _settle(
        self, known: Reading, wanted: int | None, complete: bool, full_ratio: float, now: float, reasons: list[str]
    ) -> None:
        config, memory = self._config, self._memory
        workers = count_workers(known.ready, known.starting)
        if not complete:
            reasons.append("not everything is known: nothing is taken away")
        before = memory.target
        if before is None:
            if workers is None and wanted is None:
                return
            before = memory.target = max(workers or 0, config.workers_least)
        floor = before if not complete or wanted is None else wanted
        self._wish(max(floor, wanted or 0), now)
        if wanted is not None and wanted > before:
            memory.target, memory.raised_at = wanted, now
            return
        slot = int(now // config.slot_s)
        if wanted is None or wanted == before or slot == memory.slot:
            return
        if (obstacle := self._find_obstacle(known, before, full_ratio, now)) is None:
            memory.target, memory.slot = before - 1, slot
            reasons.append(f"one may go: no more than {before - 1} were wanted for {config.hold_s / 60.0:.0f} min")
        else:
            reasons.append(f"{before} stay though {wanted} would do: {obstacle}")

    def _wish(self, wish: int, now: float) -> None:
        wishes = self._memory.wishes
        while wishes and wishes[-1][1] <= wish:
            wishes.pop()
        wishes.append((now, wish))
        while wishes[0][0] < now - self._config.hold_s:
            wishes.popleft()
        if self._memory.known_since is None:
            self._memory.known_since = now

    def _find_obstacle(self, known: Reading, before: int, full_ratio: float, now: float) -> str | None:
        """Why no worker may go; ``None`` if one may."""
        config, memory = self._config, self._memory
        since = memory.known_since
        if since is None or now - since < config.hold_s or memory.wishes[0][1] >= before:
            return "as many were wanted within the last half hour"
        burn = known.burn.any_1h
        if known.demand is None or burn is None or burn >= 1.0:
            return "the budget burns, or nobody knows"
        used = known.demand.guaranteed + config.excess_weight * known.demand.excess
        if used > (full_ratio - config.fall_margin_ratio) * (before - 1 - config.spare):
            return "the rest would be too full"
        on_the_way = (known.starting or 0.0) + (known.draining or 0.0)
        recent = memory.raised_at is not None and now - memory.raised_at < 2.0 * config.lead_s
        if on_the_way > 0.0 and recent:
            return "a worker is on its way"
        return None


def compute_full_ratio(config: ScalingConfig, burn: Burn) -> float:
    """How full workers are planned: linear in the burn of three days, so that nobody has to remember a setting.

    Unchanged between 0.3 and 1; up to the most as the burn goes to 0, down to the least at a burn of 6.
    """
    spent = burn.capacity_3d
    if spent is None:
        return config.full_ratio
    if spent > 1.0:
        return config.full_ratio - (config.full_ratio - config.full_ratio_least) * min((spent - 1.0) / 5.0, 1.0)
    return config.full_ratio + (config.full_ratio_most - config.full_ratio) * max(1.0 - spent / 0.3, 0.0)


def _both(short: float | None, long: float | None, factor: float) -> bool:
    return short is not None and long is not None and short > factor and long > factor
