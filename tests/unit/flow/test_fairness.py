"""Who of one band is served next."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.flow.fairness import BandQueue
from tests.support.flow import build_entry

CONGESTED_UNTIL = 1e9


class Room:
    """A band and who serves it; ``served`` is the work of each tenant."""

    def __init__(self, congested=False):
        self.queue = BandQueue()
        self.queue.congested_until = CONGESTED_UNTIL if congested else 0.0
        self.count = 0
        self.served = {}

    def add(self, tenant="tenant", **how):
        self.count += 1
        entry = build_entry(f"r{self.count}", sequence=self.count, tenant=tenant, **how)
        self.queue.add(entry)
        return entry

    def serve(self):
        entry = self.queue.next(0.0)
        self.queue.remove(entry)
        self.queue.charge(entry)
        tenant = entry.request.tenant_id
        self.served[tenant] = self.served.get(tenant, 0.0) + entry.work_s
        return entry


def test_earliest_deadline_first_across_tenants():
    room = Room()
    room.add("a", due_at=3.0)
    room.add("b", due_at=1.0)
    room.add("a", due_at=2.0)
    assert [room.serve().order[0] for _ in range(3)] == [1.0, 2.0, 3.0]


def test_in_a_congested_band_a_flood_gets_no_more_than_its_share():
    room = Room(congested=True)
    for _ in range(20):
        room.add("flood", due_at=1.0)
    for _ in range(5):
        room.add("modest", due_at=9.0)
    for _ in range(10):
        room.serve()
    assert room.served == {"flood": 5.0, "modest": 5.0}


def test_inside_a_tenant_the_earliest_goes_first_in_a_congested_band_too():
    room = Room(congested=True)
    late, early = room.add(due_at=3.0), room.add(due_at=1.0)
    room.queue.remove(early)
    assert room.serve() is late


def test_silence_earns_no_credit():
    room = Room(congested=True)
    for _ in range(100):
        room.add("steady")
    for _ in range(50):
        room.serve()
    for _ in range(20):
        room.add("back")
    for _ in range(20):
        room.serve()
    assert room.served["back"] <= 11.0


def test_silence_earns_no_credit_in_a_band_that_was_served_by_deadline():
    room = Room()
    for _ in range(100):
        room.add("steady")
    for _ in range(50):
        room.serve()
    room.queue.congested_until = CONGESTED_UNTIL
    for _ in range(20):
        room.add("new", due_at=1e6)
    for _ in range(20):
        room.serve()
    assert room.served["new"] <= 11.0


@given(st.lists(st.tuples(st.floats(0.1, 5.0), st.floats(0.1, 5.0)), min_size=5, max_size=60), st.integers(1, 59))
def test_between_two_that_always_wait_the_work_differs_by_two_requests_at_most(works, turns):
    """I7, the bound of virtual token counters (Sheng et al., theorem 4.4)."""
    room = Room(congested=True)
    for one, other in works:
        room.add("one", work_s=one)
        room.add("other", work_s=other)
    for _ in range(min(turns, len(works) - 1)):
        room.serve()
    assert abs(room.served.get("one", 0.0) - room.served.get("other", 0.0)) <= 2.0 * 5.0


def test_a_queue_that_charges_nobody_would_be_found(monkeypatch):
    monkeypatch.setattr(BandQueue, "charge", lambda self, entry: None)
    room = Room(congested=True)
    for _ in range(20):
        room.add("one", work_s=5.0)
        room.add("other", work_s=5.0)
    for _ in range(10):
        room.serve()
    assert abs(room.served.get("one", 0.0) - room.served.get("other", 0.0)) > 10.0


def test_totals_follow():
    room = Room()
    one = room.add("a", tokens=30, hold_s=2.0)
    room.add("b", tokens=12, hold_s=1.0)
    assert (room.queue.size, room.queue.tokens, room.queue.hold_s, room.queue.active) == (2, 42, 3.0, 2)
    room.queue.remove(one)
    assert (room.queue.size, room.queue.tokens, room.queue.hold_s, room.queue.active) == (1, 12, 1.0, 1)


def test_work_ahead_is_what_is_due_earlier():
    room = Room()
    room.add(due_at=1.0, hold_s=2.0)
    room.add(due_at=5.0, hold_s=4.0)
    assert room.queue.hold_ahead_s(build_entry("r", due_at=3.0)) == 2.0
    assert room.queue.hold_ahead_s(build_entry("r", due_at=9.0)) == 6.0


def test_work_ahead_is_no_more_than_a_fair_share_of_others():
    room = Room()
    for _ in range(50):
        room.add("flood", due_at=1.0, hold_s=1.0)
    assert room.queue.hold_ahead_s(build_entry("r", tenant="modest", due_at=9.0, hold_s=2.0)) == 2.0


def test_the_last_is_who_came_last():
    room = Room()
    room.add(due_at=5.0)
    last = room.add(due_at=1.0)
    assert room.queue.last() is last


def test_the_charge_of_one_whose_tenant_is_forgotten_is_nothing():
    queue = BandQueue()
    entry = build_entry("r")
    queue.add(entry)
    queue.remove(entry)
    queue.charge(entry)
    assert not queue._tenants


@pytest.mark.parametrize("congested", [False, True])
def test_what_left_does_not_pile_up(congested):
    room = Room(congested)
    room.add("patient", due_at=1e6)
    for number in range(3000):
        room.add(f"t{number % 7}", due_at=float(number))
        room.serve()
    queue = room.queue
    assert queue.size == 1
    held = [len(tenant.heap) for tenant in queue._tenants.values()]
    assert len(queue._by_deadline) + len(queue._by_counter) + sum(held) < 400


def test_debts_survive_a_sweep_and_strangers_are_forgotten():
    room = Room()
    room.add("patient", due_at=1e6)
    for _ in range(70):
        room.add("greedy", due_at=1.0)
        room.serve()
    for number in range(70):
        room.queue.remove(room.add(f"stranger{number}", due_at=1.0))
    assert set(room.queue._tenants) <= {"patient", "greedy", *(f"stranger{number}" for number in range(60, 70))}
    assert room.queue._tenants["greedy"].counter == 70.0
    assert room.queue.next(0.0).request.tenant_id == "patient"
