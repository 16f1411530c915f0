"""Policies that decide how many workers there are: the shipped law, and models of what is in use elsewhere.

Baselines are models by their documentation, not their code. Each has its settings as arguments;
``loadtests.sim.scaling`` sweeps them and takes the best.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import ceil

from loadtests.sim.day import EPOCH_S, Day, Demands, Scaler, Signals
from service.slo.reading import Reading
from service.slo.scaling import Scaling, ScalingConfig

WORKERS_MOST = 60


class Law:
    """The shipped law, given what the scaler reads from Prometheus."""

    def __init__(self, config: ScalingConfig, day: Day | None = None, seed: int = 0) -> None:
        self.scaling = Scaling(config)
        if day is not None:
            for now, offered in Demands(day, f"{seed}:week-before"):
                if now % 60.0 == 0.0:
                    self.scaling.remember(EPOCH_S + now - 7.0 * 86_400.0, offered.real)

    def choose(self, signals: Signals) -> int | None:
        """One decision."""
        if signals.dark:
            return self.scaling.decide(Reading(), signals.now).target
        reading = Reading(
            signals.demand, None, None, signals.held_within, signals.ready, signals.starting, signals.draining,
            signals.burn,
        )  # fmt: skip
        return self.scaling.decide(reading, signals.now).target


class _Autoscaler:
    """What HPA does with any wish: tolerance, and a fall only to the greatest wish of a window."""

    def __init__(self, least: int, stabilisation_s: float) -> None:
        self._least, self._stabilisation_s = least, stabilisation_s
        self._wishes: deque[tuple[float, int]] = deque()

    def settle(self, wish: float, current: int, now: float) -> int:
        """HPA's algorithm, https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/."""
        if current and abs(wish / current - 1.0) <= 0.1:
            wish = current
        most = max(2 * current, current + 4)  # the default policies: double or four pods
        wanted = min(max(ceil(wish), self._least), WORKERS_MOST, most)
        while self._wishes and self._wishes[-1][1] <= wanted:
            self._wishes.pop()
        self._wishes.append((now, wanted))
        while self._wishes[0][0] < now - self._stabilisation_s:
            self._wishes.popleft()
        return wanted if wanted >= current else min(max(self._wishes[0][1], wanted), current)


class Queue:
    """HPA on the length of the queue: as many workers as keep ``each`` waiting requests per worker.

    ``signal`` chooses what is counted: all that waits in the gateway, what waits within contracts, or vLLM's own
    ``num_requests_waiting`` as KEDA's users take it.
    """

    def __init__(
        self, signal: Callable[[Signals], float], each: float, least: int, stabilisation_s: float = 300.0
    ) -> None:
        self._signal, self._each = signal, each
        self._autoscaler = _Autoscaler(least, stabilisation_s)

    def choose(self, signals: Signals) -> int | None:
        """One decision."""
        current = signals.ready + signals.starting
        if signals.dark:
            return None
        return self._autoscaler.settle(self._signal(signals) / self._each, current, signals.now)


class BurnOnly:
    """More when the budget burns by the two pairs of rules, one fewer per ``every_s`` when it does not."""

    def __init__(self, fast: float, slow: float, least: int, every_s: float, pause_s: float) -> None:
        self._fast, self._slow, self._least, self._every_s, self._pause_s = fast, slow, least, every_s, pause_s
        self._raised_at = self._lowered_at = 0.0

    def choose(self, signals: Signals) -> int | None:
        """One decision."""
        burn, now, current = signals.burn, signals.now, signals.ready + signals.starting
        if signals.dark:
            return None
        fast = min(burn.capacity_5m or 0.0, burn.capacity_1h or 0.0) > self._fast
        slow = min(burn.capacity_30m or 0.0, burn.capacity_6h or 0.0) > self._slow
        if (fast or slow) and now - self._raised_at >= self._pause_s:
            self._raised_at = now
            return min(ceil(1.5 * current) if fast else current + 1, WORKERS_MOST)
        quiet = (burn.capacity_1h or 0.0) < 1.0 and now - self._raised_at >= 1800.0
        if quiet and now - self._lowered_at >= self._every_s and current > self._least:
            self._lowered_at = now
            return current - 1
        return None


class Planner:
    """A planner after Dynamo's: the load of the next interval over the throughput of a profiled worker, and more when
    the *average* time to first token is over its target. It knows no tiers: all that arrives is load."""

    def __init__(self, full: float, interval_s: float, trend: bool, target_s: float = 1.0) -> None:
        self._full, self._interval_s, self._trend, self._target_s = full, interval_s, trend, target_s
        self._sum, self._count, self._asked_at = 0.0, 0, 0.0
        self._before: float | None = None

    def choose(self, signals: Signals) -> int | None:
        """One decision."""
        if signals.dark:
            return None
        demand = signals.demand
        self._sum += demand.guaranteed + demand.excess + demand.best_effort
        self._count += 1
        if signals.now - self._asked_at < self._interval_s:
            return None
        load = self._sum / self._count
        ahead = load + (load - self._before) if self._trend and self._before is not None else load
        self._before, self._sum, self._count, self._asked_at = load, 0.0, 0, signals.now
        correction = min(max(signals.ttft_s / self._target_s, 1.0), 1.5)
        return min(max(ceil(ahead / self._full * correction), 1), WORKERS_MOST)


class Static:
    """Always as many."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def choose(self, signals: Signals) -> int | None:
        """One decision."""
        return self._workers


@dataclass(frozen=True, slots=True)
class ScalerArm:
    """A policy with one setting."""

    name: str
    setting: str
    build: Callable[[Day, int], Scaler]


def build_law(day: Day, seed: int, **changes: object) -> Law:
    """The law for a pool with this cold start; ``changes`` are fields of its config, ``history`` whether an earlier
    week is known."""
    history = changes.pop("history", True)
    config = ScalingConfig(workers_most=WORKERS_MOST, lead_s=day.cold_start_s + 60.0, **changes)  # type: ignore[arg-type]
    return Law(config, day if history else None, seed)


def list_baselines() -> list[ScalerArm]:
    """Every baseline with every setting of its sweep."""
    return [*_list_queues(), *_list_burns(), *_list_planners(), *map(_build_static, (14, 16, 18, 20, 22, 24))]


def _list_queues() -> Iterator[ScalerArm]:
    signals: tuple[tuple[str, str, Callable[[Signals], float]], ...] = (
        ("hpa-queue", "all queued", lambda signals: signals.queued),
        ("hpa-queue", "queued within contracts", lambda signals: signals.queued_within),
        ("keda-waiting", "num_requests_waiting", lambda signals: signals.engine_waiting),
    )
    each_of = (0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0)
    for (name, what, signal), each, least, window_s in product(signals, each_of, (1, 10, 14), (300.0, 1800.0)):
        setting = f"{what} {each:g} each, at least {least}, down after {window_s:.0f} s"
        yield ScalerArm(name, setting, partial(_build_queue, signal, each, least, window_s))


def _list_burns() -> Iterator[ScalerArm]:
    factors = ((14.4, 6.0), (6.0, 3.0), (2.0, 1.0), (1.0, 0.5))
    for (fast, slow), every_s, least in product(factors, (300.0, 900.0, 1800.0), (1, 6, 10)):
        setting = f"factors {fast:g} and {slow:g}, one down per {every_s:.0f} s, at least {least}"
        yield ScalerArm("burn-only", setting, partial(_build_burn, fast, slow, least, every_s))


def _list_planners() -> Iterator[ScalerArm]:
    fulls = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7)
    for full, interval_s, trend in product(fulls, (60.0, 180.0, 600.0), (False, True)):
        setting = f"{full * 100:.0f} % of a worker's throughput, every {interval_s:.0f} s" + ", by trend" * trend
        yield ScalerArm("ttft-planner", setting, partial(_build_planner, full, interval_s, trend))


def _build_queue(
    signal: Callable[[Signals], float], each: float, least: int, window_s: float, _day: Day, _seed: int
) -> Scaler:
    return Queue(signal, each, least, window_s)


def _build_burn(fast: float, slow: float, least: int, every_s: float, day: Day, _seed: int) -> Scaler:
    return BurnOnly(fast, slow, least, every_s, day.cold_start_s)


def _build_planner(full: float, interval_s: float, trend: bool, _day: Day, _seed: int) -> Scaler:
    return Planner(full, interval_s, trend)


def _build_static(workers: int) -> ScalerArm:
    return ScalerArm("static", f"{workers} workers", lambda _day, _seed: Static(workers))
