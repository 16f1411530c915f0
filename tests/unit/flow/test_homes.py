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
    lines = HomeLines()
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
