"""Builds the recording rules: sums of events over each window, and ratios of these sums."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from service.slo.window import HOUR_S, MINUTE_S, WindowPlan, write_duration

EVENTS_METRIC = "sluice_slo_events_total"
"""The gateways' exact counter; see ``telemetry.metrics``."""

_BY = "tier, slo, model"
_VALID = 'tier!="none",result=~"good|bad"'
_BAD = 'tier!="none",result="bad"'


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``name`` is a recorded series or an alert; ``for_s`` and ``keep_firing_s`` belong to alerts."""

    name: str
    expr: str
    alert: bool = False
    for_s: int = 0
    keep_firing_s: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules that are evaluated in order, every ``interval_s`` seconds."""

    name: str
    interval_s: int
    rules: tuple[Rule, ...]


def events_series(window: str) -> str:
    """Name of the recorded sum of valid events."""
    return f"slo:events:increase{window}"


def bad_series(window: str) -> str:
    """Name of the recorded sum of bad events."""
    return f"slo:bad:increase{window}"


def ratio_series(window: str) -> str:
    """Name of the recorded share of bad events; there is none while nothing happens."""
    return f"slo:bad:ratio{window}"


def build_recordings(plan: WindowPlan, divisor: int = 1) -> tuple[RuleGroup, ...]:
    """Sums and ratios for every window of ``plan``; ``divisor`` is the one that the plan was shrunk by.

    *Increase before sum*: each replica's counter resets by itself. *Ratio of sums*, guarded: where there are no events
    there is no ratio, since 0/0 would be NaN, and NaN compares to nothing. *The period* is the sum of hourly sums; in
    the first hour of a Prometheus there is none yet, and the last bucket stands in for it: without that, the gates that
    need it would keep every alert silent.
    """
    groups: dict[int, list[Rule]] = {}
    for window_s in plan.windows_s:
        window = write_duration(window_s)
        groups.setdefault(_choose_interval_s(window_s, divisor), []).extend(
            (
                Rule(events_series(window), _sum_increase(_VALID, window)),
                Rule(bad_series(window), _sum_increase(_BAD, window)),
                _build_ratio(window),
            )
        )
    longest = groups.setdefault(_choose_interval_s(plan.period_s, divisor), [])
    period, bucket = write_duration(plan.period_s), write_duration(plan.bucket_s)
    for name in (events_series, bad_series):
        longest.append(Rule(name(period), f"sum_over_time({name(bucket)}[{period}:{bucket}]) or {name(bucket)}"))
    longest.append(_build_ratio(period))
    return tuple(
        RuleGroup(f"sluice-slo-{plan.name}-{write_duration(interval_s)}", interval_s, tuple(rules))
        for interval_s, rules in sorted(groups.items())
    )


def list_thresholds(
    targets: Iterable[tuple[tuple[tuple[int, float], ...], float | None]],
) -> tuple[list[float], list[float]]:
    """TTFT and TPOT thresholds in seconds, each once, ascending: all of them have to be bucket edges."""
    ttft, tpot = set[float](), set[float]()
    for ttft_targets_s, tpot_target_s in targets:
        ttft.update(target_s for _, target_s in ttft_targets_s)
        tpot.update(() if tpot_target_s is None else (tpot_target_s,))
    return sorted(ttft), sorted(tpot)


def _sum_increase(selector: str, window: str) -> str:
    return f"sum by ({_BY}) (increase({EVENTS_METRIC}{{{selector}}}[{window}]))"


def _build_ratio(window: str) -> Rule:
    return Rule(ratio_series(window), f"{bad_series(window)} / ({events_series(window)} > 0)")


def _choose_interval_s(window_s: int, divisor: int) -> int:
    """Windows of pages are looked at as often as gateways are scraped; a longer one changes slowly and costs more. All
    intervals are below the 5 minutes after which Prometheus takes a recorded series for stale."""
    length_s = window_s * divisor
    interval_s = 15 if length_s <= HOUR_S else MINUTE_S if length_s <= 6 * HOUR_S else 2 * MINUTE_S
    return max(1, interval_s // divisor)
