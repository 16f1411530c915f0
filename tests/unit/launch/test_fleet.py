"""A fleet follows what is desired, and ends nobody who has work."""

from collections.abc import Sequence

import pytest

from service.launch.fleet import Fleet


class FakeProcess:
    def __init__(self) -> None:
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode


class FakeChild:
    def __init__(self, port: int) -> None:
        self.name, self.log, self.process, self.ended = f"worker {port}", None, FakeProcess(), False

    def end(self, patience_s: float) -> int:
        self.ended = True
        return 0


class FakeRoll:
    def __init__(self) -> None:
        self.listed: list[int] = []
        self.in_flight: dict[int, int | None] = {}
        self.next: int | None = None
        self.reachable = True

    def relist(self, ports: Sequence[int]) -> bool:
        if self.reachable:
            self.listed = list(ports)
        return self.reachable

    def let_go(self) -> int | None:
        return self.next

    def count_in_flight(self, port: int) -> int | None:
        return self.in_flight.get(port, 0)


@pytest.fixture
def roll() -> FakeRoll:
    return FakeRoll()


@pytest.fixture
def fleet(roll: FakeRoll) -> Fleet:
    ports = iter(range(9001, 9100))
    return Fleet(FakeChild, lambda: next(ports), roll, lambda _: None)  # type: ignore[arg-type]


def test_what_lacks_is_started_and_listed_at_once(fleet: Fleet, roll: FakeRoll) -> None:
    fleet.move(3)
    assert len(fleet) == 3
    assert roll.listed == [9001, 9002, 9003]
    fleet.move(3)
    assert len(fleet.children()) == 3


def test_who_leaves_is_empty_first_and_off_the_list_before_it_ends(fleet: Fleet, roll: FakeRoll) -> None:
    fleet.move(3)
    roll.next, roll.in_flight = 9002, {9002: 2}
    fleet.move(1)
    child = fleet.leaving[9002]
    assert roll.listed == [9001, 9002, 9003]
    fleet.look()
    assert not child.ended  # type: ignore[attr-defined]
    roll.in_flight[9002] = None
    fleet.look()
    assert 9002 in fleet.leaving
    fleet.move(1)
    assert len(fleet.leaving) == 1  # one after the other
    roll.in_flight[9002] = 0
    roll.reachable = False
    fleet.look()
    assert not child.ended  # type: ignore[attr-defined]
    roll.reachable = True
    fleet.look()
    assert child.ended  # type: ignore[attr-defined]
    assert roll.listed == [9001, 9003]
    assert len(fleet) == 2


def test_nobody_goes_if_the_gateway_lets_nobody_go(fleet: Fleet, roll: FakeRoll) -> None:
    fleet.move(2)
    fleet.move(1)
    roll.next = 9999  # of somebody else
    fleet.move(1)
    assert (len(fleet), fleet.leaving) == (2, {})


def test_who_died_is_replaced(fleet: Fleet, roll: FakeRoll) -> None:
    fleet.move(2)
    fleet.workers[9001].process.returncode = 1
    fleet.look()
    assert roll.listed == [9002]
    fleet.move(2)
    assert roll.listed == [9002, 9003]


def test_who_dies_while_it_leaves_is_gone(fleet: Fleet, roll: FakeRoll) -> None:
    fleet.move(2)
    roll.next, roll.in_flight = 9001, {9001: 3}
    fleet.move(1)
    fleet.leaving[9001].process.returncode = 1
    fleet.look()
    assert fleet.leaving == {}
    assert roll.listed == [9002]
