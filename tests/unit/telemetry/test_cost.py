"""The fold stays cheap. Figures are in the docstrings; the limits here are wide, for busy machines."""

import sys
import time
import timeit

import pytest

from service.domain.command import Dispatch
from service.domain.event import FirstTokenSeen, PermitEnded, Woken
from service.domain.permit import PermitEnding
from service.telemetry.gauges import Snapshot
from service.telemetry.recorder import Recorder
from tests.support.telemetry import NOTHING, TIERS, build_exposition, build_stream, build_workers

pytestmark = pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer is paid for with every line")


def test_one_request_costs_microseconds():
    recorder, settlement = Recorder(TIERS), build_stream()
    events = (
        (Woken(), [Dispatch("a", "w", 1)]),
        (FirstTokenSeen("a"), []),
        (PermitEnded("a", PermitEnding.SERVED), []),
    )
    (first, orders), (second, none), (third, _) = events

    def fold():
        recorder.observe(1.0, first, orders)
        recorder.observe(2.0, second, none)
        recorder.observe(3.0, third, none)
        recorder.settle(settlement)

    best_s = min(timeit.repeat(fold, number=5000, repeat=7, timer=time.process_time)) / 5000
    assert best_s < 2 * 3e-6


def test_one_scrape_costs_milliseconds():
    workers = build_workers(8)
    flow = Snapshot(type(NOTHING)(0, 0, 28, False, None, workers), {worker.worker_id: 0.5 for worker in workers})
    exposition = build_exposition(snapshot=flow)
    for accept in (None, "application/openmetrics-text"):
        best_s = min(timeit.repeat(lambda: exposition.render(accept), number=1, repeat=7, timer=time.process_time))  # noqa: B023
        assert best_s < 2 * 0.020
