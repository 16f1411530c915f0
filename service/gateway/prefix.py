"""Marks the beginnings of a prompt by hashes, so that the core can tell which worker has read them before.

A mark says how many bytes it covers (upper bits) and a CRC-32 of them and of the tenant (lower 32), the same on every
gateway. Marks stand on a grid (1, 1.5, 2, 3, 4, 6 ... 64 KiB, then at each doubling) and, since a conversation comes
again with more at its end, where its last few messages end. A stretch between two marks of the grid that is longer than
8 KiB is judged by its length and its first and last 4 KiB: so a body of any size costs the hashing of at most 200 KiB
(CRC-32 runs at 4 GB/s, measured), and nothing has to leave the event loop.

*Trade-offs*: a plain ``prompt`` that grows is recognised by the grid alone, so up to a third of it is taken for unread
(half, beyond 64 KiB). Prompts that differ only in the middle of a long stretch are taken for equal, and so are two in
four billion others: the price is a worker chosen in vain. A client that renders the same conversation in another way
(key order, spaces) is not recognised.
"""

from collections.abc import Mapping
from zlib import crc32

import msgspec

LEAST_BYTES = 2048
"""Shorter bodies are not marked: reading their prompts costs less than missing a better place would."""

_FRONT = ("tools", "system", "instructions")
"""Members that chat templates put before the conversation."""

_MAIN = ("messages", "prompt", "input")

_GRID = tuple(
    sorted({1024 << step for step in range(17)} | {1536 << step for step in range(6)})
)  # 1 KiB to 64 MiB, twice per doubling up to 64 KiB
_SAMPLE = 4096
ENDS_MAX = 8
_TAIL = 1 << 17
"""Ends of messages are looked for in so many of the last bytes."""


def find_marks(fields: Mapping[str, msgspec.Raw], salt: int) -> tuple[int, ...]:
    """Marks of the prompt in a body's members, from the shortest to the longest. ``salt`` keeps tenants apart."""
    marks: list[int] = []
    base, state = 0, salt
    for name in _FRONT:
        if name in fields:
            part = memoryview(fields[name])
            base, state = base + len(part), _absorb(part, 0, len(part), state)
            marks.append(base << 32 | state)
    for name in _MAIN:
        if name in fields:
            marks += _mark(memoryview(fields[name]), base, state)
            break
    return tuple(marks)


def _mark(text: memoryview, base: int, state: int) -> list[int]:
    """Marks within the last member; ``base`` bytes stand before it."""
    ends = _find_ends(text)
    marks: list[int] = []
    begin = 0
    for end in _GRID:
        while ends and ends[-1] < end:
            own = ends.pop()
            marks.append(base + own << 32 | _absorb(text, begin, own, state))
        if end > len(text):
            break
        state = _absorb(text, begin, end, state)
        marks.append(base + end << 32 | state)
        begin = end
    return marks


def _find_ends(text: memoryview) -> list[int]:
    """Where the last messages end, the last one first. The bracket or quote that closes the whole is left out: it is
    not where it was when more follows."""
    last = len(text) - 1
    if last <= 0:
        return []
    floor = max(last - _TAIL, 0)
    tail = bytes(text[floor:])
    ends = [last]
    close, apart = tail.rfind(b"},{"), tail.rfind(b"}, {")
    while len(ends) < ENDS_MAX:
        if close > apart:
            ends.append(floor + close + 1)
            close = tail.rfind(b"},{", 0, close)
        elif apart >= 0:
            ends.append(floor + apart + 1)
            apart = tail.rfind(b"}, {", 0, apart)
        else:
            break
    return ends


def _absorb(view: memoryview, begin: int, end: int, state: int) -> int:
    """The hash of ``state`` and what stands from ``begin`` to ``end``."""
    if end - begin <= 2 * _SAMPLE:
        return crc32(view[begin:end], state)
    state = crc32(view[begin : begin + _SAMPLE], crc32(b"%d" % (end - begin), state))
    return crc32(view[end - _SAMPLE : end], state)
