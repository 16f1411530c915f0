"""What operators are shown is what is so."""

import pytest

from service.domain.load import WorkerLoad
from service.domain.units import WorkerId
from service.flow.stats import FlowStats, WorkerStats
from service.gateway.inspection import describe_worker, find_reason_not_ready
from service.workers.addresses import WorkerAddress
from service.workers.health import Health, Reason
from service.workers.monitor import WorkerStatus

A = WorkerId("w:1")


def core(healthy: bool = True, draining: bool = False) -> WorkerStats:
    return WorkerStats(A, in_flight=2, healthy=healthy, draining=draining, listed=True, resting=False)


def flow(*workers: WorkerStats, draining: bool = False) -> FlowStats:
    return FlowStats(
        queued_requests=0,
        queued_tokens=0,
        in_flight=0,
        draining=draining,
        mean_tpot_s=None,
        workers=workers,
    )


@pytest.mark.parametrize(
    ("stats", "leaving", "reason"),
    [
        (flow(core()), False, None),
        (flow(core()), True, "draining"),
        (flow(core(), draining=True), False, "draining"),
        (flow(), False, "no worker is ready"),
        (flow(core(healthy=False)), False, "no worker is ready"),
        (flow(core(draining=True)), False, "no worker is ready"),
    ],
)
def test_readiness(stats, leaving, reason):
    assert find_reason_not_ready(stats, leaving) == reason


def test_what_is_not_known_is_null_and_never_zero():
    status = WorkerStatus(
        A, WorkerAddress(A, "w", 1), Health(Reason.UNPROVEN, 0.0), None, None, 0.0, 0, None, None, 0, 0
    )  # fmt: skip
    shown = describe_worker(status, None, "x")
    for name in ("load_age_s", "running_requests", "waiting_requests", "kv_cache_ratio", "served_models"):
        assert shown[name] is None
    assert shown["healthy"] is False
    assert shown["reason"] == "unproven"
    load = WorkerLoad(1.0, running_requests=3, waiting_requests=1, kv_cache_ratio=0.5)
    known = WorkerStatus(
        A, WorkerAddress(A, "w", 1), Health(Reason.GOOD, 0.0), load, 0.5, 0.0, 0, frozenset({"m"}), (), 0, 0
    )  # fmt: skip
    shown = describe_worker(known, core(draining=True), "x")
    assert (shown["running_requests"], shown["in_flight_requests"], shown["draining"]) == (3, 2, True)
    assert shown["served_models"] == ["m"]
