"""Heavy work is done piece by piece, so much in one turn of the loop."""

from service.runtime.turnstile import PIECE_BYTES, Turnstile


class Stand:
    def __init__(self):
        self.soon, self.log = [], []
        self.turnstile = Turnstile(self.soon.append)

    def enter(self, name, size=PIECE_BYTES, then=None):
        def step():
            self.log.append(name)
            if then is not None:
                then()

        self.turnstile.enter(size, step)

    def turn(self):
        """What one turn of the loop does."""
        assert len(self.soon) == 1
        self.log.clear()
        self.soon.pop()()
        return self.log


def test_pieces_share_a_turn_up_to_its_size_in_the_order_they_came():
    stand = Stand()
    for name in "abc":
        stand.enter(name)
    assert stand.log == []
    assert stand.turn() == ["a", "b"]
    assert stand.turn() == ["c"]
    assert not stand.soon


def test_what_is_larger_than_a_turn_has_one_for_itself():
    stand = Stand()
    stand.enter("a")
    stand.enter("large", 40 * PIECE_BYTES)
    stand.enter("b")
    assert [list(stand.turn()) for _ in range(3)] == [["a"], ["large"], ["b"]]


def test_what_enters_during_a_turn_waits_for_the_next():
    stand = Stand()
    stand.enter("a", 1, lambda: stand.enter("b", 1))
    assert stand.turn() == ["a"]
    assert stand.turn() == ["b"]
    assert not stand.soon


def test_a_fault_keeps_nobody_else_waiting(caplog):
    stand = Stand()
    stand.enter("a", 1, lambda: 1 / 0)
    stand.enter("b", 1)
    assert stand.turn() == ["a", "b"]
    assert "a piece of a large body failed" in caplog.text
