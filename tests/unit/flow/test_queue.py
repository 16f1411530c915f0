"""Who waits, in which line, and until when."""

import pytest

from service.domain.errors import InvariantError
from service.flow.queue import ArrivalQueue, Waiting
from tests.support.flow import build_request


def wait(queue, name, *, ttl_s=10.0, pinned_to=None, failed_on=(), tokens=100):
    entry = Waiting(build_request(name, ttl_s=ttl_s, pinned_to=pinned_to), tokens, 1, frozenset(failed_on))
    queue.add(entry)
    return entry


def names(lines):
    return [list(line) for line in lines if line]


@pytest.fixture
def queue():
    return ArrivalQueue()


@pytest.fixture
def mixed(queue):
    """Two ordinary requests, two pinned to a, one pinned to b, one that failed on a."""
    wait(queue, "one")
    wait(queue, "returned", failed_on="a")
    wait(queue, "pinned-a1", pinned_to="a")
    wait(queue, "two")
    wait(queue, "pinned-b", pinned_to="b")
    wait(queue, "pinned-a2", pinned_to="a")
    return queue


def test_an_empty_queue(queue):
    assert queue.size == 0
    assert queue.tokens == 0
    assert queue.next_deadline_at() is None
    assert queue.remove("nobody") is None
    assert queue.take_expired(1e9) == []
    assert not queue.has_ordinary()


def test_tokens_and_length_follow(queue):
    first = wait(queue, "one", tokens=30)
    wait(queue, "two", tokens=12)
    assert (queue.size, queue.tokens) == (2, 42)
    assert "one" in queue
    assert queue.remove("one") is first
    assert (queue.size, queue.tokens) == (1, 12)
    assert "one" not in queue


def test_waiting_twice_is_a_fault(queue):
    wait(queue, "one")
    with pytest.raises(InvariantError, match="request one already waits"):
        wait(queue, "one")


def test_choosy_is_who_cannot_go_everywhere(queue):
    assert not wait(queue, "one").choosy
    assert wait(queue, "pinned", pinned_to="a").choosy
    assert wait(queue, "returned", failed_on="a").choosy


def test_ordinary_requests_stand_in_one_line(queue):
    wait(queue, "one")
    wait(queue, "two")
    assert names(queue.lines()) == [["one", "two"]]
    assert names(queue.lines_for("a")) == [["one", "two"]]


def test_choosy_requests_stand_in_lines_of_their_own_and_go_first(mixed):
    assert names(mixed.lines()) == [["pinned-a1", "pinned-a2"], ["pinned-b"], ["returned"], ["one", "two"]]


def test_a_worker_sees_only_the_lines_it_may_serve(mixed):
    assert names(mixed.lines_for("a")) == [["pinned-a1", "pinned-a2"], ["one", "two"]]
    assert names(mixed.lines_for("b")) == [["pinned-b"], ["returned"], ["one", "two"]]
    assert names(mixed.lines_for("c")) == [["returned"], ["one", "two"]]


def test_empty_lines_are_forgotten(mixed):
    for name in ("pinned-a1", "pinned-a2", "pinned-b", "returned"):
        assert mixed.remove(name).request.request_id == name
    assert names(mixed.lines()) == [["one", "two"]]
    assert len(mixed.lines()) == 1


def test_has_ordinary_does_not_count_the_choosy(queue):
    wait(queue, "pinned", pinned_to="a")
    assert not queue.has_ordinary()
    wait(queue, "one")
    assert queue.has_ordinary()


def test_expiry_takes_the_earliest_deadline_first(queue):
    wait(queue, "late", ttl_s=3.0)
    wait(queue, "early", ttl_s=1.0)
    wait(queue, "later", ttl_s=5.0, pinned_to="a")
    assert queue.next_deadline_at() == 1.0
    assert [entry.request.request_id for entry in queue.take_expired(3.0)] == ["early", "late"]
    assert queue.next_deadline_at() == 5.0


def test_the_deadline_of_one_that_left_is_no_deadline(queue):
    wait(queue, "early", ttl_s=1.0)
    wait(queue, "late", ttl_s=3.0)
    queue.remove("early")
    assert queue.next_deadline_at() == 3.0
    assert queue.take_expired(2.0) == []


def test_deadlines_of_those_that_left_do_not_pile_up(queue):
    wait(queue, "patient", ttl_s=1.0)
    for number in range(1000):
        wait(queue, f"r{number}", ttl_s=100.0)
        queue.remove(f"r{number}")
    assert len(queue._deadlines) < 100
    assert queue.next_deadline_at() == 1.0
