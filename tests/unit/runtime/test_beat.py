"""Periodic steps: regular, told how late they are, not ended by a fault."""

import pytest

from service.runtime.beat import Beat


class _Clockwork:
    """A loop's timer under the test's own clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waiting: list[tuple[float, object]] = []

    def later(self, length_s, call):
        self.waiting.append((self.now + length_s, call))

    def ring(self, late_s: float = 0.0) -> None:
        due_at, call = self.waiting.pop(0)
        self.now = due_at + late_s
        call()


def test_it_goes_on_until_it_is_stopped():
    clockwork, seen, lags = _Clockwork(), [], []
    beat = Beat(
        0.5,
        lambda: seen.append(clockwork.now),
        clockwork.later,
        lambda: clockwork.now,
        lambda due_at, at: lags.append(at - due_at),
    )
    beat.start()
    clockwork.ring()
    clockwork.ring(0.25)
    assert seen == [0.5, 1.25]
    assert lags == [0.0, 0.25]
    beat.stop()
    clockwork.ring()
    assert seen == [0.5, 1.25]
    assert clockwork.waiting == []


def test_a_fault_of_one_step_does_not_end_it():
    clockwork = _Clockwork()

    def fail():
        raise RuntimeError("once")

    beat = Beat(1.0, fail, clockwork.later, lambda: clockwork.now)
    beat.start()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            clockwork.ring()
    assert len(clockwork.waiting) == 1
