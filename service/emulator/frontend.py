"""Decides when a request that has arrived becomes known to the engine: the HTTP process works them off one by one.

*Trade-offs*: what the HTTP process does for tokens on their way out is part of the step cost here, so it slows all
streams alike; a request that is given up still takes its time.
"""

from __future__ import annotations

from collections import deque

from service.emulator.profiles import Frontend
from service.emulator.sequence import Sequence


class FrontQueue:
    """Requests between the socket and the engine, in order of arrival."""

    __slots__ = ("_coming", "_free_at", "_frontend", "_stall_s", "is_instant")

    def __init__(self, frontend: Frontend) -> None:
        self._frontend = frontend
        self.is_instant = frontend == Frontend()
        self._free_at = float("-inf")
        self._stall_s = 0.0
        self._coming: deque[tuple[float, Sequence]] = deque()

    def take(self, sequence: Sequence, now: float, is_running: bool) -> None:
        """A request arrives, at an engine that is in a step or idle."""
        frontend = self._frontend
        work_s = frontend.per_request_s + frontend.per_prompt_token_s * sequence.request.prompt_tokens
        self._free_at = max(now, self._free_at) + work_s
        if is_running:
            self._stall_s += frontend.stall_ratio * work_s
        self._coming.append((self._free_at + frontend.latency_s, sequence))

    def give(self, now: float) -> list[Sequence]:
        """The requests that are through by now."""
        given: list[Sequence] = []
        while self._coming and self._coming[0][0] <= now:
            given.append(self._coming.popleft()[1])
        return given

    def collect_stall(self) -> float:
        """Seconds the engine has lost since it was last asked."""
        stall_s, self._stall_s = self._stall_s, 0.0
        return stall_s

    def next_at(self) -> float | None:
        """When the next one will be through."""
        return self._coming[0][0] if self._coming else None
