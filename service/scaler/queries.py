"""Writes the questions to Prometheus. Every one of them is answered by nothing where nothing is known: no ``or 0``, and
no sample that Prometheus would take from minutes ago."""

from enum import StrEnum

from service.scaler.config import SteeringConfig


class Part(StrEnum):
    """What is asked at each step."""

    DEMAND = "demand"
    GATEWAYS = "gateways"
    TARGETS = "targets"
    QUEUED = "queued"
    HELD = "held"
    PERMITS = "permits"
    KV = "kv"
    WORKERS = "workers"


class Window(StrEnum):
    """Windows of burn rates; the long ones are asked for ten times as rarely."""

    M5 = "5m"
    M30 = "30m"
    H1 = "1h"
    H6 = "6h"
    D3 = "3d"


SLOW_WINDOWS = (Window.H6, Window.D3)


def build_queries(config: SteeringConfig) -> dict[Part, str]:
    """One question per part."""
    which = "{" + config.selector + "}"
    fresh = f"[{_length(config.fresh_s)}]"
    return {
        Part.DEMAND: f"sum by (claim) (rate(sluice_offered_work_seconds_total{which}{fresh}))",
        Part.GATEWAYS: f"count(last_over_time(sluice_permits_held{which}{fresh}))",
        Part.TARGETS: f"count(last_over_time(up{which}{fresh}))",
        Part.QUEUED: f"sum by (claim) (last_over_time(sluice_queued_work_seconds{which}{fresh}))",
        Part.HELD: f"sum by (claim) (last_over_time(sluice_claim_permits_held{which}{fresh}))",
        Part.PERMITS: f"sum(last_over_time(sluice_permits{which}{fresh}))",
        Part.KV: f"quantile(0.9, max by (worker) (last_over_time(sluice_worker_kv_ratio{which}{fresh})))",
        Part.WORKERS: f"max by (state) (last_over_time(sluice_workers{which}{fresh}))",
    }


def build_miss_query(config: SteeringConfig, window: Window, capacity_only: bool) -> str:
    """Requests that missed, by tier."""
    matchers = [config.selector] if config.selector else []
    matchers += ['cause="capacity"'] if capacity_only else []
    return f"sum by (tier) (increase(sluice_slo_misses_total{{{','.join(matchers)}}}[{window}]))"


def build_valid_query(config: SteeringConfig, window: Window) -> str:
    """Requests that were judged, by tier."""
    matchers = [config.selector] if config.selector else []
    matchers += ['slo="all"', 'result=~"good|bad"']
    return f"sum by (tier) (increase(sluice_slo_events_total{{{','.join(matchers)}}}[{window}]))"


def _length(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
