"""Several real controllers and a store between them: however late reports are, permits never add up to too many."""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.event import (
    PermitEnded,
    ReplicasSeen,
    ReportDue,
    RequestArrived,
    WorkerHealthChanged,
    WorkerJoined,
)
from service.domain.permit import PermitEnding
from service.flow.config import FlowConfig, SharingConfig
from service.flow.controller import FlowController
from service.flow.shares import bound_overshoot
from tests.support.flow import build_request

CARRIES = 12
WORKERS = ("u", "v", "w")


class Gateways:
    """``count`` controllers; what each has written and not yet had stored, or not yet heard, waits in line."""

    def __init__(self, count: int, lease_s: float, assumed: int | None = None) -> None:
        self.lease_s = lease_s
        sharing = SharingConfig(lease_s, assumed or count)
        config = FlowConfig(requests_per_worker=CARRIES, sharing=sharing)
        self.cores = [FlowController(config, random.Random(index)) for index in range(count)]
        self.store = {}
        self.written = [deque() for _ in self.cores]
        self.replies = [deque() for _ in self.cores]
        self.now = 0.0
        self.arrived = 0
        for index, core in enumerate(self.cores):
            core.handle(ReportDue(f"g{index}"), 0.0)
            for name in WORKERS:
                core.handle(WorkerJoined(name), 0.0)
                core.handle(WorkerHealthChanged(name, True), 0.0)

    def write(self, index: int) -> None:
        """The gateway makes a report."""
        core = self.cores[index]
        core.handle(ReportDue(f"g{index}"), self.now)
        self.written[index].append(core.report(self.now))

    def keep(self, index: int) -> None:
        """The store takes it, and answers with what it has."""
        if self.written[index]:
            report = self.written[index].popleft()
            self.store[report.replica_id] = report
            self.replies[index].append(ReplicasSeen(report.number, tuple(self.store.values())))

    def hear(self, index: int) -> None:
        """The answer reaches the gateway."""
        if self.replies[index]:
            self.cores[index].handle(self.replies[index].popleft(), self.now)

    def exchange(self, index: int) -> None:
        self.write(index)
        while self.written[index]:
            self.keep(index)
        while self.replies[index]:
            self.hear(index)

    def arrive(self, index: int, count: int, rank: int) -> None:
        for _ in range(count):
            self.arrived += 1
            request = build_request(f"r{self.arrived}", arrived_at=self.now, ttl_s=1000.0, rank=rank)
            self.cores[index].handle(RequestArrived(request), self.now)

    def end(self, index: int, count: int) -> None:
        core = self.cores[index]
        for request_id in list(core._state.ledger.running)[:count]:
            core.handle(PermitEnded(request_id, PermitEnding.SERVED, 20), self.now)

    def shares(self, name: str) -> list[int]:
        return [core._state.ledger.workers[name].permits for core in self.cores]

    def held(self, name: str) -> list[int]:
        return [len(core._state.ledger.workers[name].held) for core in self.cores]

    def total(self, name: str) -> int:
        """What is held there or may be taken at this moment."""
        return sum(max(pair) for pair in zip(self.shares(name), self.held(name), strict=True))

    def settle(self) -> None:
        """All have been in contact for a lease."""
        for _ in range(14):
            for index in range(len(self.cores)):
                self.exchange(index)
            self.now += self.lease_s / 10.0


STEPS = st.lists(
    st.tuples(
        st.integers(0, 15),
        st.sampled_from(["write", "write", "keep", "keep", "hear", "hear", "arrive", "end", "exchange"]),
        st.integers(1, 40),
        st.integers(0, 2),
    ),
    min_size=30,
    max_size=150,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([2, 3, 4, 16]), STEPS)
def test_whatever_is_late_permits_and_requests_never_exceed_what_a_worker_carries(count, steps):
    gateways = Gateways(count, lease_s=100.0)
    gateways.settle()
    for which, what, many, rank in steps:
        index = which % count
        if what == "arrive":
            gateways.arrive(index, many, rank)
        elif what == "end":
            gateways.end(index, many)
        else:
            getattr(gateways, what)(index)
        gateways.now += 0.02
        for name in WORKERS:
            assert gateways.total(name) <= CARRIES


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([2, 4, 7]), st.data())
def test_those_who_are_cut_off_overshoot_by_no_more_than_the_bound(count, data):
    gateways = Gateways(count, lease_s=1.0)
    gateways.settle()
    cut_off = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count), label="cut off")
    hungry = data.draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, 60)), max_size=4), label="arrivals")
    lasts = data.draw(st.integers(1, 12), label="rounds")
    for index, many in hungry:
        gateways.arrive(index, many, 0)
    for _ in range(10):
        gateways.now += 0.2
        for index in range(count):
            gateways.exchange(index)
    bound = CARRIES + bound_overshoot(CARRIES, count, len(cut_off))
    for turn in range(lasts + 12):
        gateways.now += 0.2
        for index in range(count):
            if turn < lasts and index in cut_off:
                gateways.write(index)
                gateways.written[index].clear()  # it does not get through
            else:
                gateways.exchange(index)
            gateways.end(index, 2)
        for name in WORKERS:
            assert sum(gateways.shares(name)) <= bound
    for name in WORKERS:
        assert sum(gateways.shares(name)) <= CARRIES


@pytest.mark.parametrize("count", [1, 2, 4, 16])
def test_when_all_is_known_nothing_is_left_idle(count):
    gateways = Gateways(count, lease_s=1.0)
    gateways.settle()
    for name in WORKERS:
        assert sum(gateways.shares(name)) == CARRIES


def test_who_has_the_demand_gets_the_permits_within_three_reports():
    gateways = Gateways(4, lease_s=1.0)
    gateways.settle()
    gateways.arrive(0, 60, 0)
    for _ in range(3):
        gateways.now += 0.2
        for index in range(4):
            gateways.exchange(index)
    assert sum(sum(gateways.shares(name)[1:]) for name in WORKERS) <= 3 + len(WORKERS)
    assert sum(gateways.held(name)[0] for name in WORKERS) >= 3 * CARRIES - 3 - len(WORKERS)


def test_a_dead_gateways_part_is_taken_up_after_a_lease():
    gateways = Gateways(4, lease_s=1.0)
    gateways.settle()
    for _ in range(7):
        gateways.now += 0.2
        for index in range(3):
            gateways.exchange(index)
    for name in WORKERS:
        assert sum(gateways.shares(name)[:3]) == CARRIES


def test_a_store_that_lost_everything_does_not_look_like_a_pool_without_others():
    gateways = Gateways(4, lease_s=1.0)
    gateways.settle()
    gateways.store.clear()
    newcomer = Gateways(1, lease_s=1.0, assumed=4)
    newcomer.store, newcomer.now = gateways.store, gateways.now
    newcomer.exchange(0)
    newcomer.now += 0.2
    newcomer.exchange(0)
    for name in WORKERS:
        assert newcomer.shares(name) == [CARRIES // 4]


def test_who_never_reached_the_store_takes_the_part_of_one_among_those_assumed():
    gateways = Gateways(1, lease_s=1.0, assumed=4)
    gateways.write(0)
    assert gateways.shares("u") == [0]  # perhaps it is only the first report that is slow
    gateways.now += 1.0
    gateways.write(0)
    assert gateways.shares("u") == [3]


def test_with_the_store_gone_for_all_each_goes_on_with_its_part_and_no_more():
    gateways = Gateways(4, lease_s=1.0)
    gateways.settle()
    gateways.arrive(0, 60, 0)
    for _ in range(4):
        gateways.now += 0.2
        for index in range(4):
            gateways.exchange(index)
    before = gateways.shares("u")
    for _ in range(20):
        gateways.now += 0.2
        for index in range(4):
            gateways.write(index)
    after = gateways.shares("u")
    assert before[0] > after[0] == 3
    assert all(now <= then for now, then in zip(after, before, strict=True))
