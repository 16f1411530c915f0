"""Puts together what was known at each step of the grid."""

from collections.abc import Mapping
from dataclasses import dataclass

from service.flow.band import Claim
from service.scaler.config import SteeringConfig
from service.scaler.queries import Part, Window
from service.scaler.source import Series
from service.slo.objective import BAD_EVENTS_MIN
from service.slo.reading import Burn, Demand, Reading
from service.telemetry.labels import WorkerPhase

_GONE_STEPS = 20
"""A gateway that told something within so many steps is missed: until then a sum without it is not the whole."""

_SERVING = (WorkerPhase.READY.value, WorkerPhase.RESTING.value)
_STARTING = (WorkerPhase.STARTING.value,)
_DRAINING = (WorkerPhase.DRAINING.value, WorkerPhase.LEAVING.value)


@dataclass(frozen=True, slots=True)
class Answers:
    """All that Prometheus said. ``valid``, ``short`` and ``missed`` by window: requests judged, those that missed for
    want of capacity, and all that missed."""

    parts: Mapping[Part, Series]
    valid: Mapping[Window, Series]
    short: Mapping[Window, Series]
    missed: Mapping[Window, Series]


def build_reading(config: SteeringConfig, answers: Answers, place: int) -> Reading:
    """What was known at one step.

    Sums over gateways count only if every gateway is in them: each target that Prometheus knows, and as many as there
    were a few steps before.
    """
    burn = _build_burn(config, answers, place)
    if not _is_whole(answers, place):
        return Reading(burn=burn)
    demand, queued, held = (
        _by_label(answers.parts[part], "claim", place) for part in (Part.DEMAND, Part.QUEUED, Part.HELD)
    )
    permits, kv = _single(answers.parts[Part.PERMITS], place), _single(answers.parts[Part.KV], place)
    workers = _by_label(answers.parts[Part.WORKERS], "state", place)
    within, everything = _weigh(config, held), sum(held.values())
    slots = within / permits if within is not None and permits else None
    # Best effort fills whatever is free and gives it back when asked, so only the share of the others counts as used.
    kv = kv * within / everything if kv is not None and within is not None and everything else None
    return Reading(
        _build_demand(demand),
        _weigh(config, queued),
        kv,
        slots,
        _sum_states(workers, _SERVING),
        _sum_states(workers, _STARTING),
        _sum_states(workers, _DRAINING),
        burn,
    )


def build_demand(answers: Answers, place: int) -> Demand | None:
    """Only the demand of a step: of an earlier week."""
    return _build_demand(_by_label(answers.parts[Part.DEMAND], "claim", place))


def _is_whole(answers: Answers, place: int) -> bool:
    seen = answers.parts[Part.GATEWAYS]
    there, targets = _single(seen, place), _single(answers.parts[Part.TARGETS], place)
    before = [_single(seen, earlier) or 0.0 for earlier in range(max(place - _GONE_STEPS, 0), place)]
    return there is not None and targets is not None and there >= max([targets, *before])


def _build_demand(by_claim: Mapping[str, float]) -> Demand | None:
    values = [by_claim.get(claim.value) for claim in (Claim.GUARANTEED, Claim.EXCESS, Claim.BEST_EFFORT)]
    known = [value for value in values if value is not None]
    return Demand(*known) if len(known) == len(values) else None


def _weigh(config: SteeringConfig, by_claim: Mapping[str, float]) -> float | None:
    within, excess = by_claim.get(Claim.GUARANTEED.value), by_claim.get(Claim.EXCESS.value)
    if within is None or excess is None:
        return None
    return within + config.scaling.excess_weight * excess


def _build_burn(config: SteeringConfig, answers: Answers, place: int) -> Burn:
    rates = [_find_rate(config, answers.short, answers.valid, window, place, BAD_EVENTS_MIN) for window in Window]
    m5, m30, h1, h6, d3 = rates
    return Burn(m5, m30, h1, h6, d3, _find_rate(config, answers.missed, answers.valid, Window.H1, place, 1))


def _find_rate(
    config: SteeringConfig,
    missed: Mapping[Window, Series],
    valid: Mapping[Window, Series],
    window: Window,
    place: int,
    bad_least: float,
) -> float | None:
    """The greatest burn rate of any tier; fewer than ``bad_least`` misses are chance. Nothing burns where counters
    stand still; where there are none, nobody knows."""
    bad, judged = _by_label(missed[window], "tier", place), _by_label(valid[window], "tier", place)
    rates = []
    for tier, budget in config.budgets.items():
        if tier not in bad or tier not in judged:
            return None
        counts = judged[tier] > 0.0 and bad[tier] >= bad_least - 0.5  # increase() extrapolates: 2.97 are three
        rates.append(bad[tier] / judged[tier] / budget if counts else 0.0)
    return max(rates, default=0.0)


def _by_label(series: Series, label: str, place: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for labels, values in series.items():
        name = dict(labels).get(label)
        if name is not None and place in values:
            found[name] = values[place]
    return found


def _single(series: Series, place: int) -> float | None:
    for values in series.values():
        return values.get(place)
    return None


def _sum_states(by_state: Mapping[str, float], states: tuple[str, ...]) -> float | None:
    return sum(by_state[state] for state in states) if all(state in by_state for state in states) else None
