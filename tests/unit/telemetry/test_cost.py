"""The fold stays cheap. Figures are in the docstrings; the limits here are wide, for busy machines."""

import sys
import time
import timeit

import pytest

from service.domain.command import Dispatch
from service.domain.event import FirstTokenSeen, PermitEnded, Woken
from service.domain.permit import PermitEnding
from service.slo.verdict import judge
from service.telemetry.gauges import Snapshot
from service.telemetry.recorder import Recorder
from service.telemetry.slo_events import SloEvents
from tests.support.telemetry import NOTHING, TIERS, build_exposition, build_stream, build_workers
from tests.unit.telemetry.test_budget import GOLD

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


def test_counting_for_the_objectives_costs_less_than_a_microsecond():
    events = SloEvents(["gold"], "model")
    for settlement in (build_stream(tier="gold"), build_stream(tier="gold", first_token_at=104.0)):
        settlement.verdict = judge(settlement, GOLD)
        best_s = min(
            timeit.repeat(lambda: events.settle(settlement), number=5000, repeat=7, timer=time.process_time)  # noqa: B023
        )
        assert best_s / 5000 < 1e-6


def test_one_scrape_costs_milliseconds():
    workers = build_workers(8)
    flow = Snapshot(type(NOTHING)(0, 0, 28, False, None, workers), {worker.worker_id: 0.5 for worker in workers})
    exposition = build_exposition(snapshot=flow)
    for accept in (None, "application/openmetrics-text"):
        best_s = min(timeit.repeat(lambda: exposition.render(accept), number=1, repeat=7, timer=time.process_time))  # noqa: B023
        assert best_s < 2 * 0.020
