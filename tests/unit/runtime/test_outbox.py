"""What is written in one turn of the loop leaves at its end, in order."""

from service.runtime.outbox import Outbox


class Transport:
    def __init__(self, name, log):
        self.name, self.log, self.closing = name, log, False

    def write(self, data):
        self.log.append((self.name, data))

    def is_closing(self):
        return self.closing


def test_pieces_leave_together_and_in_order():
    soon, log = [], []
    outbox = Outbox(soon.append)
    a, b = Transport("a", log), Transport("b", log)
    outbox.write(a, b"1")
    outbox.write(b, b"2")
    outbox.write(a, b"3")
    assert log == []
    assert len(soon) == 1  # asked for once a turn
    soon.pop()()
    assert log == [("a", b"1"), ("b", b"2"), ("a", b"3")]
    outbox.write(a, b"4")
    assert len(soon) == 1


def test_a_flush_leaves_nothing_for_the_end_of_the_turn():
    soon, log = [], []
    outbox = Outbox(soon.append)
    outbox.write(Transport("a", log), b"1")
    outbox.flush()
    assert log == [("a", b"1")]
    soon.pop()()
    assert log == [("a", b"1")]


def test_a_closing_transport_is_left_alone():
    soon, log = [], []
    outbox = Outbox(soon.append)
    gone = Transport("a", log)
    outbox.write(gone, b"1")
    gone.closing = True
    soon.pop()()
    assert log == []


def test_what_a_write_causes_leaves_in_the_next_turn():
    soon, log = [], []
    outbox = Outbox(soon.append)

    class Answering(Transport):
        def write(self, data):
            super().write(data)
            if data == b"1":
                outbox.write(self, b"2")

    outbox.write(Answering("a", log), b"1")
    soon.pop()()
    assert log == [("a", b"1")]
    soon.pop()()
    assert log == [("a", b"1"), ("a", b"2")]


def test_what_is_collected_is_bounded():
    """A flood within one turn reaches the transport, which alone can say that nobody reads."""
    soon, log = [], []
    outbox = Outbox(soon.append)
    flooded = Transport("a", log)
    for number in range(64):
        outbox.write(flooded, b"x" * 65536)
        assert 65536 * (number + 1) - sum(len(data) for _, data in log) <= 65536
    for _ in soon:
        outbox.flush()
    assert len(log) == 64
