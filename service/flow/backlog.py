"""Holds how much waiting work is due when, so that what is due before a moment can be summed up."""

_FINEST_S = 0.5
_RADIX = 16
_LEVELS = 4
_FEW = 64
"""Up to so many different moments are simply walked through, as in a band whose deadlines span half a minute."""


class DueWork:
    """Permit-seconds by deadline, told apart to half a second: add, take and the sum up to a moment.

    Four tables, each sixteen times coarser than the one before (0.5 s, 8 s, 128 s, 34 min); a sum takes what is whole
    from the coarser ones. So it costs some fifty look-ups however far deadlines are apart, or however many wait.
    """

    __slots__ = ("_tables",)

    def __init__(self) -> None:
        self._tables: tuple[dict[int, list[float]], ...] = tuple({} for _ in range(_LEVELS))

    def add(self, due_at: float, hold_s: float) -> None:
        """So much more is due then."""
        key = int(due_at / _FINEST_S)
        for table in self._tables:
            cell = table.get(key)
            if cell is None:
                table[key] = [1.0, hold_s]
            else:
                cell[0] += 1.0
                cell[1] += hold_s
            key //= _RADIX

    def take(self, due_at: float, hold_s: float) -> None:
        """What was added is due no longer."""
        key = int(due_at / _FINEST_S)
        for table in self._tables:
            cell = table[key]
            cell[0] -= 1.0
            cell[1] -= hold_s
            if not cell[0]:
                del table[key]
            key //= _RADIX

    def sum_until(self, due_at: float) -> float:
        """Permit-seconds due until then."""
        key = int(due_at / _FINEST_S)
        table = self._tables[0]
        if len(table) <= _FEW:
            return sum([cell[1] for other, cell in table.items() if other <= key])
        total_s, end = 0.0, key + 1
        for table in self._tables[:-1]:
            for other in range(key - key % _RADIX, end):
                cell = table.get(other)
                if cell is not None:
                    total_s += cell[1]
            end = key = key // _RADIX
        return total_s + sum([cell[1] for other, cell in self._tables[-1].items() if other < key])

    def clear(self) -> None:
        """Nothing is due."""
        for table in self._tables:
            table.clear()
