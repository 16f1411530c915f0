"""Holds the KV blocks of one engine: who has them, and which prefixes can be reused.

A full block whose content is known by a hash stays after its last user leaves, until it is the least recently used
one when a free block is wanted (as vLLM's block pool does). Hash ``i`` of a request names its tokens ``0 .. (i + 1) *
block_size``, so equal hashes mean equal prefixes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """Counts blocks; a block without a hash is only a number."""

    __slots__ = ("_free", "_idle", "_users", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._users: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Blocks that can be handed out: free ones and idle cached ones."""
        return self._free + len(self._idle)

    @property
    def used(self) -> int:
        return self.total - self.available

    @property
    def cached(self) -> int:
        """Blocks with a known content, in use or idle."""
        return len(self._users) + len(self._idle)

    def count_hits(self, hashes: Sequence[int], limit: int) -> int:
        """How many leading blocks are cached, at most ``limit``."""
        users, idle = self._users, self._idle
        for index in range(min(limit, len(hashes))):
            if hashes[index] not in users and hashes[index] not in idle:
                return index
        return min(limit, len(hashes))

    def count_idle(self, hashes: Sequence[int]) -> int:
        """How many of these cached blocks have no user: taking them lowers ``available``."""
        return sum(1 for name in hashes if name in self._idle)

    def acquire(self, hashes: Sequence[int]) -> None:
        """Add a user to cached blocks."""
        for name in hashes:
            if name in self._idle:
                del self._idle[name]
                self._users[name] = 1
            else:
                self._users[name] += 1

    def take(self, count: int) -> bool:
        """Hand out unnamed blocks, evicting idle prefixes if need be; all or nothing."""
        if count > self._free:
            missing = count - self._free
            if missing > len(self._idle):
                return False
            for _ in range(missing):
                self._idle.popitem(last=False)
            self._free += missing
        self._free -= count
        return True

    def publish(self, name: int) -> bool:
        """Give a handed-out block its content's name. False: the content is cached already, the block stays unnamed."""
        if name in self._users or name in self._idle:
            return False
        self._users[name] = 1
        return True

    def release(self, unnamed: int, named: Sequence[int]) -> None:
        """Give blocks back. Named ones become idle, the tail of a prefix being the first to go."""
        self._free += unnamed
        for name in reversed(named):
            users = self._users[name] - 1
            if users:
                self._users[name] = users
            else:
                del self._users[name]
                self._idle[name] = None

    def resize(self, total: int) -> None:
        """Lose or gain blocks. Idle prefixes go first; what is in use stays; ``available`` may be negative."""
        self._free += total - self.total
        self.total = total
        while self._free < 0 and self._idle:
            self._idle.popitem(last=False)
            self._free += 1
