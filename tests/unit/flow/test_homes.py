"""Who waits for a worker of its own holds nobody up, and is not forgotten."""

from service.flow.fairness import BandQueue
from service.flow.homes import HomeLines
from tests.support.flow import build_entry


def build_queue(*entries):
    queue = BandQueue()
    for entry in entries:
        queue.add(entry)
    return queue


def test_lines_are_by_deadline_and_end_with_the_last():
    lines = HomeLines(lambda tenant: 0.0)
    late, soon = build_entry("late", due_at=5.0), build_entry("soon", due_at=2.0)
    for entry in (late, soon):
        lines.add(entry, "a")
    assert (lines.count("a"), lines.count("b"), list(lines), len(lines)) == (2, 0, ["a"], 1)
    assert lines.first("a") is soon
    soon.gone = True
    lines.drop("a")
    assert lines.first("a") is late
    lines.drop("a")
    assert lines.first("a") is None
    assert not lines


def test_in_a_congested_band_the_tenant_that_was_served_least_goes_first():
    served = {"a": 5.0, "b": 2.0, "c": 3.0}
    lines = HomeLines(served.get)
    entries = {
        name: build_entry(name, tenant=name[0], due_at=due_at)
        for name, due_at in (("a1", 1.0), ("b1", 2.0), ("c1", 3.0), ("b2", 4.0))
    }
    for entry in entries.values():
        lines.add(entry, "w")
    assert lines.first("w") is entries["a1"]
    assert lines.first("w", congested=True) is entries["b1"]
    entries["b1"].gone = True
    lines.drop("w")
    served["b"] = 4.0
    assert lines.first("w", congested=True) is entries["c1"]
    entries["c1"].home = None
    lines.drop("w")
    assert lines.first("w", congested=True) is entries["b2"]
    entries["b2"].gone = True
    lines.drop("w")
    assert lines.first("w", congested=True) is entries["a1"]


def test_who_comes_before_whom_follows_the_bands_own_order():
    soon, late = build_entry("soon", tenant="a", due_at=1.0), build_entry("late", tenant="b", due_at=2.0)
    queue = build_queue(soon, late)
    assert queue.goes_before(soon, late, 0.0)
    queue.congested_until = 9.0
    assert queue.goes_before(soon, late, 0.0)  # both were served the same
    queue.charge(soon)
    assert queue.goes_before(late, soon, 0.0)
    queue.stand_aside(late, "w")
    queue.stand_aside(soon, "w")
    assert queue.first_at("w", 0.0) is late
    assert queue.first_at("w", 10.0) is soon


def test_who_stands_aside_waits_and_is_not_next():
    first, second = build_entry("first", due_at=1.0), build_entry("second", due_at=2.0)
    queue = build_queue(first, second)
    queue.stand_aside(first, "a")
    assert (queue.size, queue.ready, queue.active, queue.tokens) == (2, 1, 1, 200)
    assert queue.next(0.0) is second
    assert queue.homes.first("a") is first
    queue.step_back(first)
    queue.step_back(first)  # that changes nothing
    assert (queue.ready, queue.homes.count("a")) == (2, 0)
    assert queue.next(0.0) is first


def test_in_a_congested_band_a_tenant_all_of_whom_stand_aside_is_passed_over():
    mine, other = build_entry("mine", tenant="a", sequence=1), build_entry("other", tenant="b", sequence=2)
    queue = build_queue(mine, other)
    queue.congested_until = 9.0
    assert queue.next(0.0) is mine
    queue.stand_aside(mine, "w")
    assert queue.next(0.0) is other
    queue.charge(mine)
    queue.step_back(mine)
    assert queue.next(0.0) is other  # the other one was given less


def test_it_can_go_from_where_it_stands():
    mine = build_entry("mine")
    queue = build_queue(mine)
    queue.stand_aside(mine, "w")
    queue.remove(mine)
    assert (queue.size, queue.ready, queue.homes.count("w")) == (0, 0, 0)


def test_what_stood_aside_again_and_again_does_not_pile_up():
    entries = [build_entry(f"r{turn}", sequence=turn) for turn in range(4)]
    queue = build_queue(*entries)
    for _ in range(200):
        queue.stand_aside(entries[3], "w")
        queue.step_back(entries[3])
    assert len(queue._by_deadline) < 150
    queue.stand_aside(entries[3], "w")
    while queue.ready:
        queue.remove(queue.next(0.0))
    assert queue.size == 1
