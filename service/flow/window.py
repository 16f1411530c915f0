"""Counts what was spent in the last minute, by slots of half a second.

A sliding window, so that no minute, wherever it begins, sees more than its limit: fixed windows let twice the limit
pass around their borders, and a bucket that is filled at the limit's rate lets it pass in the first minute.

*Trade-offs*: a slot leaves when the youngest of what it holds is a minute old, so what is spent steadily at exactly the
limit is held back by up to one slot in 120 (0.8 %).
"""

from collections import deque
from collections.abc import Iterable

SPAN_S = 60.0
GRAIN_S = 0.5
"""120 slots in a minute: 0.8 % is little to lose, and a busy tenant's window still fits in some 10 KB."""

_KEPT = int(SPAN_S / GRAIN_S)


def slot_of(moment: float) -> int:
    """The slot in which ``moment`` lies."""
    return int(moment // GRAIN_S)


def is_past(slot: int, now: float) -> bool:
    """Whether ``slot`` has left by ``now``."""
    return slot < slot_of(now) - _KEPT


def leaves_at(slot: int) -> float:
    """When the youngest of what ``slot`` holds is a minute old."""
    return (slot + 1) * GRAIN_S + SPAN_S


class SlidingWindow:
    """Amounts by slot, oldest first; add and read are O(1) amortised, a correction looks at 121 slots at most.

    An amount may be negative: what is given back of something that was counted elsewhere already.
    """

    __slots__ = ("_slots", "used")

    def __init__(self) -> None:
        self._slots: deque[list[int]] = deque()
        self.used = 0
        """What all slots hold together, as of the last ``advance``."""

    def advance(self, now: float) -> int:
        """Let go of what has left by ``now``; what is left is the answer."""
        slots = self._slots
        if slots:
            oldest = slot_of(now) - _KEPT
            while slots and slots[0][0] < oldest:
                self.used -= slots.popleft()[1]
        return self.used

    def add(self, amount: int, slot: int) -> None:
        """Count ``amount`` in ``slot``, usually the youngest."""
        slots = self._slots
        self.used += amount
        if slots and slots[-1][0] == slot:
            slots[-1][1] += amount
            return
        if not slots or slots[-1][0] < slot:
            slots.append([slot, amount])
            return
        index = next(place for place, entry in enumerate(slots) if entry[0] >= slot)
        if slots[index][0] == slot:
            slots[index][1] += amount
        else:
            slots.insert(index, [slot, amount])

    def entries(self) -> list[tuple[int, int]]:
        """Slots with what they hold, oldest first."""
        return [(slot, amount) for slot, amount in self._slots]

    def replace(self, entries: Iterable[tuple[int, int]]) -> None:
        """Hold exactly ``entries``, oldest first."""
        self._slots = deque([slot, amount] for slot, amount in entries)
        self.used = sum(amount for _, amount in self._slots)

    def frees_at(self, need: int) -> float | None:
        """When so much of what is held will have left; ``None`` if less is held."""
        freed = 0
        for slot, amount in self._slots:
            freed += amount
            if freed >= need:
                return leaves_at(slot)
        return None

    def clears_at(self) -> float | None:
        """When nothing will be left; ``None`` if nothing is held."""
        return leaves_at(self._slots[-1][0]) if self._slots else None
