"""What it costs to lose a worker, and when that is said again."""

from types import SimpleNamespace

import pytest

from service.domain.load import WorkerLoad
from service.domain.units import WorkerId
from service.workers.addresses import WorkerAddress
from service.workers.deletion_cost import CostLedger, compute_cost


def load(at: float, running: int | None = 0, waiting: int | None = 0, hits: int | None = 0) -> WorkerLoad:
    return WorkerLoad(at, running_requests=running, waiting_requests=waiting, prefix_hit_tokens=hits)


@pytest.mark.parametrize(
    ("before", "after", "cost"),
    [
        (load(0), load(30), 0),
        (load(0), load(30, 1), 10),
        (load(0), load(30, 6, 1), 30),
        (load(0), load(30, 6, 2), 40),
        (load(0), load(30, 200, None), 80),
        (load(0, hits=10), load(30, hits=90_010), 2),  # 3,000 tokens a second
        (load(0), load(30, 1, hits=10**9), 19),  # bounded: warmth never outweighs a request
        (load(0, hits=900), load(30, hits=3), 0),  # it started again
        (load(0, hits=None), load(30, 1, hits=9), 10),
        (load(0), load(30, hits=None), 0),
        (load(0), load(30, None), None),
        (load(30), load(30), None),  # no reading since
    ],
)
def test_the_cost(before, after, cost):
    assert compute_cost(before, after) == cost


class _Pool:
    """Workers whose figures a test sets; each look is 30 s after the last."""

    def __init__(self, *names: str) -> None:
        self.at = 0.0
        self.running: dict[str, int | None] = dict.fromkeys(names, 0)
        self.leaving: set[str] = set()
        self.ledger = CostLedger()

    def look(self) -> dict[str, int]:
        self.at += 30.0
        workers = []
        for name, running in self.running.items():
            address = WorkerAddress(WorkerId(name), "h", 1, pod=f"pod-{name}", leaving=name in self.leaving)
            workers.append(SimpleNamespace(address=address, load=load(self.at, running)))
        return {address.worker_id: cost for address, cost in self.ledger.observe(workers)}


def test_a_cost_is_due_when_it_was_the_same_twice_and_until_it_is_written():
    pool = _Pool("a")
    assert pool.look() == {}
    assert pool.look() == {}
    assert pool.look() == {"a": 0}  # what an earlier gateway left there is not known
    assert pool.look() == {"a": 0}
    pool.ledger.note_written(WorkerId("a"), 0)
    assert pool.look() == {}
    pool.running["a"] = 5
    assert pool.look() == {}
    assert pool.look() == {"a": 30}


def test_a_load_that_swings_is_not_written():
    pool = _Pool("a")
    for turn in range(20):
        pool.running["a"] = turn % 2 * 8
        assert pool.look() == {}


def test_small_changes_are_no_change():
    pool = _Pool("a")
    pool.running["a"] = 5
    for _ in range(3):
        due = pool.look()
    pool.ledger.note_written(WorkerId("a"), due["a"])
    for running in (4, 6, 7, 5):
        pool.running["a"] = running
        assert pool.look() == {}


def test_the_largest_change_comes_first():
    pool = _Pool("a", "b", "c")
    pool.running |= {"b": 100, "c": 3}
    for _ in range(3):
        due = pool.look()
    assert list(due) == ["b", "c", "a"]


def test_who_leaves_or_is_no_pod_or_tells_nothing_is_left_alone():
    pool = _Pool("a", "b")
    pool.leaving.add("a")
    pool.running["b"] = None
    for _ in range(4):
        assert pool.look() == {}
    bare = SimpleNamespace(address=WorkerAddress(WorkerId("h:1"), "h", 1), load=load(1.0))
    silent = SimpleNamespace(address=WorkerAddress(WorkerId("u"), "h", 1, pod="p"), load=None)
    ledger = CostLedger()
    for _ in range(3):
        assert ledger.observe([bare, silent]) == []


def test_who_is_gone_is_forgotten():
    pool = _Pool("a")
    for _ in range(3):
        pool.look()
    pool.running.clear()
    pool.look()
    pool.ledger.note_written(WorkerId("a"), 0)  # the answer came late
    assert pool.ledger.pods == {}
