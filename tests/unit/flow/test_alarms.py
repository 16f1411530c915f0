"""When the core must look again though nothing happens."""

from math import inf

from service.flow.alarms import Alarms


def test_nothing_rings_by_itself():
    assert Alarms().next_at() == inf
    assert len(Alarms()) == 0


def test_the_earliest_rings_first():
    alarms = Alarms()
    alarms.note_rest(3.0)
    alarms.note_rest(2.0)
    assert alarms.next_at() == 2.0
    alarms.note_again(1.0)
    alarms.note_again(9.0)
    assert alarms.next_at() == 1.0
    alarms.ring(2.0)
    assert alarms.next_at() == 3.0
    alarms.ring(3.0)
    assert alarms.next_at() == inf


def test_the_same_rest_is_noted_once():
    alarms = Alarms()
    for _ in range(5):
        alarms.note_rest(2.0)
    assert len(alarms) == 1
