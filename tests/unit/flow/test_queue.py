"""Who waits, where, and until when."""

import pytest

from service.domain.errors import InvariantError
from service.flow.band import BEST_EFFORT, EXCESS
from service.flow.queue import WaitingRoom
from tests.support.flow import build_entry

count = iter(range(1_000_000))


def wait(room, name, **how):
    entry = build_entry(name, sequence=next(count), **how)
    room.add(entry)
    return entry


def names(lines):
    return [list(line) for line in lines if line]


@pytest.fixture
def room():
    return WaitingRoom()


@pytest.fixture
def mixed(room):
    """Two ordinary requests, two pinned to a, one pinned to b, one that failed on a."""
    wait(room, "one")
    wait(room, "returned", failed_on="a")
    wait(room, "pinned-a1", pinned_to="a")
    wait(room, "two")
    wait(room, "pinned-b", pinned_to="b")
    wait(room, "pinned-a2", pinned_to="a")
    return room


def test_an_empty_room(room):
    assert (room.size, room.tokens, room.choosy) == (0, 0, 0)
    assert room.next_deadline_at() is None
    assert room.remove("nobody") is None
    assert room.take_expired(1e9) == []
    assert list(room.bands()) == []


def test_tokens_and_length_follow(room):
    first = wait(room, "one", tokens=30)
    wait(room, "two", tokens=12)
    assert (room.size, room.tokens) == (2, 42)
    assert "one" in room
    assert room.remove("one") is first
    assert (room.size, room.tokens) == (1, 12)
    assert "one" not in room


def test_waiting_twice_is_a_fault(room):
    wait(room, "one")
    with pytest.raises(InvariantError, match="request one already waits"):
        wait(room, "one")


def test_bands_come_in_order_and_empty_ones_are_left_out(room):
    for name, band in (("batch", BEST_EFFORT), ("gold", 0), ("more", EXCESS)):
        wait(room, name, band=band)
    assert [band for band, _ in room.bands()] == [0, EXCESS, BEST_EFFORT]
    room.remove("more")
    assert [band for band, _ in room.bands()] == [0, BEST_EFFORT]


def test_work_ahead_is_all_that_is_dearer_and_what_is_earlier_in_the_own_band(room):
    wait(room, "gold", band=0, hold_s=1.0)
    wait(room, "early", due_at=1.0, hold_s=2.0)
    wait(room, "late", due_at=9.0, hold_s=4.0)
    wait(room, "batch", band=BEST_EFFORT, hold_s=8.0)
    assert room.hold_ahead_s(build_entry("r", due_at=5.0)) == 3.0


def test_who_must_make_room(room):
    wait(room, "gold", band=0)
    wait(room, "more", band=EXCESS, tokens=7)
    wait(room, "batch1", band=BEST_EFFORT, tokens=20)
    wait(room, "batch2", band=BEST_EFFORT, tokens=3)
    assert room.displaceable(EXCESS) == (3, 30)
    left = []
    for _ in range(3):
        left.append(room.last_of_cheapest().request.request_id)
        room.remove(left[-1])
    assert left == ["batch2", "batch1", "more"]


def test_choosy_requests_stand_in_lines_of_their_own(mixed):
    assert names(mixed.lines()) == [["pinned-a1", "pinned-a2"], ["pinned-b"], ["returned"]]
    assert (mixed.size, mixed.choosy) == (6, 4)


def test_a_worker_sees_only_the_lines_it_may_serve(mixed):
    assert names(mixed.lines_for("a")) == [["pinned-a1", "pinned-a2"]]
    assert names(mixed.lines_for("b")) == [["pinned-b"], ["returned"]]
    assert names(mixed.lines_for("c")) == [["returned"]]


def test_a_cheaper_band_holds_up_no_dearer_one(room):
    wait(room, "batch", band=64, failed_on="a")
    wait(room, "gold", band=0, failed_on="a")
    wait(room, "pinned-batch", band=64, pinned_to="b")
    wait(room, "pinned-gold", band=0, pinned_to="b")
    expected = [["pinned-gold"], ["pinned-batch"], ["gold"], ["batch"]]
    assert names(room.lines()) == names(room.lines_for("b")) == expected


def test_empty_lines_are_forgotten(mixed):
    for name in ("pinned-a1", "pinned-a2", "pinned-b", "returned"):
        assert mixed.remove(name).request.request_id == name
    assert (mixed.lines(), mixed.choosy, mixed.size) == ([], 0, 2)


def test_expiry_takes_the_earliest_deadline_first(room):
    wait(room, "late", ttl_s=3.0)
    wait(room, "early", ttl_s=1.0)
    wait(room, "later", ttl_s=5.0, pinned_to="a")
    assert room.next_deadline_at() == 1.0
    assert [entry.request.request_id for entry in room.take_expired(3.0)] == ["early", "late"]
    assert room.next_deadline_at() == 5.0


def test_the_deadline_of_one_that_left_is_no_deadline(room):
    wait(room, "early", ttl_s=1.0)
    wait(room, "late", ttl_s=3.0)
    room.remove("early")
    assert room.next_deadline_at() == 3.0
    assert room.take_expired(2.0) == []


def test_deadlines_of_those_that_left_do_not_pile_up(room):
    wait(room, "patient", ttl_s=1.0)
    for number in range(1000):
        wait(room, f"r{number}", ttl_s=100.0)
        room.remove(f"r{number}")
    assert len(room._deadlines) < 100
    assert room.next_deadline_at() == 1.0


def test_who_came_back_has_one_deadline(room):
    entry = wait(room, "r", ttl_s=5.0, due_at=2.0)
    room.remove("r")
    room.add(entry.renew(next(count), 1, frozenset(), 1))
    assert room.next_deadline_at() == 5.0
    assert [entry.request.request_id for entry in room.take_expired(5.0)] == ["r"]
