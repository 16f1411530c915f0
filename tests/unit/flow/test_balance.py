"""Two choices, and never an idle worker with room."""

import random

import pytest

from service.flow.balance import choose_worker, has_room
from service.flow.ledger import WorkerState

NOWHERE = frozenset()


def build_worker(name, held=0):
    worker = WorkerState(name, healthy=True)
    worker.held = {f"{name}{number}": None for number in range(held)}
    return worker


class Draws:
    """Chance that gives the numbers it was told."""

    def __init__(self, *numbers):
        self.numbers = list(numbers)

    def random(self):
        return self.numbers.pop(0)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda worker: setattr(worker, "healthy", False),
        lambda worker: setattr(worker, "draining", True),
        lambda worker: setattr(worker, "listed", False),
        lambda worker: setattr(worker, "held", {"x": None, "y": None}),
        lambda worker: setattr(worker.breaker, "busy_until", 5.0),
    ],
    ids=["sick", "draining", "left", "full", "resting"],
)
def test_no_room(spoil):
    worker = build_worker("a")
    assert has_room(worker, 2, 0.0)
    spoil(worker)
    assert not has_room(worker, 2, 0.0)


def test_nobody_to_choose():
    assert choose_worker([], 2, NOWHERE, 0.0, Draws()) is None


def test_one_worker_needs_no_chance():
    worker = build_worker("a")
    assert choose_worker([worker], 2, NOWHERE, 0.0, Draws()) is worker


def test_the_less_loaded_of_two_drawn():
    idle, busy, idlest = build_worker("a", 1), build_worker("b", 2), build_worker("c", 0)
    assert choose_worker([idle, busy, idlest], 9, NOWHERE, 0.0, Draws(0.4, 0.0)) is idle  # draws b, then a
    assert choose_worker([idle, busy, idlest], 9, NOWHERE, 0.0, Draws(0.0, 0.0)) is idle  # draws a, then b


def test_the_two_drawn_are_never_the_same():
    workers = [build_worker("a"), build_worker("b", 1)]
    chosen = {choose_worker(workers, 9, NOWHERE, 0.0, Draws(x, y)).worker_id for x in (0, 0.9) for y in (0, 0.9)}
    assert chosen == {"a"}


def test_the_second_if_the_first_is_forbidden():
    workers = [build_worker("a"), build_worker("b", 1)]
    assert choose_worker(workers, 9, frozenset({"a"}), 0.0, Draws(0.0, 0.0)).worker_id == "b"


def test_the_rest_is_walked_when_neither_has_room():
    workers = [build_worker("a", 2), build_worker("b", 2), build_worker("c", 1), build_worker("d", 0)]
    assert choose_worker(workers, 2, NOWHERE, 0.0, Draws(0.0, 0.0)).worker_id == "d"
    assert choose_worker(workers, 2, frozenset({"d"}), 0.0, Draws(0.0, 0.0)).worker_id == "c"
    assert choose_worker(workers[:2], 2, NOWHERE, 0.0, Draws(0.0, 0.0)) is None


def test_many_choices_spread_well():
    workers = [build_worker(name) for name in "abcdefgh"]
    chance = random.Random(7)
    for number in range(800):
        choose_worker(workers, 1000, NOWHERE, 0.0, chance).held[str(number)] = None
    assert all(95 <= worker.in_flight <= 105 for worker in workers)
