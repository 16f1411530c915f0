"""Tenants and keys are followed; what is known stays known."""

import logging

import pytest

from service.domain.condition import Condition, StoreError
from service.domain.record import Changes
from service.runtime.following import Following


class Source:
    """Says what it was given, one after the other."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def fetch(self, epoch, version):
        self.asked.append((epoch, version))
        answer = self.answers.pop(0)
        if isinstance(answer, StoreError):
            raise answer
        return answer


async def test_what_could_not_be_taken_is_asked_for_again():
    change = Changes("one", 4, True, [("t:a", b"{}")])
    source = Source(change, change)
    taken = []

    async def take(changes):
        taken.append(changes.version)
        if len(taken) == 1:
            raise KeyError("a fault of our own")

    following = Following(source, take)
    with pytest.raises(KeyError):
        await following.turn()
    await following.turn()
    assert taken == [4, 4]
    assert source.asked == [("", 0)] * 2


async def test_each_change_is_taken_once_and_a_store_begun_anew_takes_nothing_away(caplog):
    caplog.set_level(logging.INFO)
    first = Changes("one", 4, True, [("t:a", b"{}")])
    anew = Changes("two", 1, True, [("t:b", b"{}")])
    away = StoreError(Condition.AWAY, "no connection")
    source = Source(first, None, away, away, StoreError(Condition.EMPTY, "nothing there"), anew)
    taken = []

    async def take(changes):
        taken.append((changes.epoch, changes.whole))

    following = Following(source, take)
    for _ in range(6):
        await following.turn()
    assert taken == [("one", True), ("two", False)]
    assert source.asked == [("", 0)] + [("one", 4)] * 5
    assert following.condition is Condition.FINE
    assert following.calls["directory", Condition.AWAY] == 2
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3  # one for each change of the condition
    assert "no connection" in said[0]
