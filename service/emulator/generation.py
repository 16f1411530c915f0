"""Decides what one generating request sends as its tokens come: events, faults, the end."""

from __future__ import annotations

from service.emulator.answers import Answer, Dialect
from service.emulator.delivery import shape
from service.emulator.exchange import Exchange, Headers
from service.emulator.faults import SSE_VARIANTS, Fault, FaultKind
from service.emulator.steps import Finished
from service.emulator.writing import Delta

ERROR_EVENT = (
    b'data: {"error": {"message": "Internal server error", "type": "InternalServerError", '
    b'"param": null, "code": 500}}\n\ndata: [DONE]\n\n'
)
FLOOD_BURST = 64
FLOOD_WORDS = " flood" * 40
NOTHING = Delta(0, "", "", None, "", [])
HOP_HEADERS: Headers = [
    (b"connection", b"keep-alive, x-hop"),
    (b"x-hop", b"for this hop only"),
    (b"keep-alive", b"timeout=5"),
]


class Generation:
    """One request on its way out. Its choices are requests of their own inside the engine."""

    def __init__(
        self, exchange: Exchange, answer: Answer, dialect: Dialect, faults: tuple[Fault, ...], headers: Headers
    ) -> None:
        self.exchange = exchange
        self.answer = answer
        self.over = False
        self._dialect = dialect
        self._headers = headers
        self._left = len(answer.writers)
        self._opened = False
        self._pending = [0] * len(answer.writers)
        self._finishing: list[str | None] = [None] * len(answer.writers)
        self._with_ids = answer.job.return_token_ids
        self._faults = {fault.kind: fault for fault in faults}
        self._variants = frozenset(self._faults) & SSE_VARIANTS
        self._flooded = 0
        answer.finish_reasons = [None] * len(answer.writers)
        if FaultKind.CONNECTION_TOKENS in self._faults:
            self._headers = [*headers, *HOP_HEADERS]
        exchange.single_bytes = FaultKind.SSE_BYTES in self._faults
        exchange.on_writable = self.flush

    @property
    def slow_factor(self) -> float:
        fault = self._faults.get(FaultKind.SLOW)
        return fault.factor if fault is not None else 1.0

    def begin(self) -> None:
        """The head of a stream leaves at once, before any token: so does vLLM's."""
        if not self.answer.job.stream:
            return
        self.exchange.begin(self._headers)
        if FaultKind.FLOOD in self._faults:
            self._flood()
        else:
            self._break(0)

    def observe(self, choice: int, tokens: int, done: Finished | None) -> None:
        """Tokens of one choice, and its end. ``done`` also brings the moments for the metrics."""
        if self.over or FaultKind.FLOOD in self._faults:
            return
        self._pending[choice] += tokens
        if done is not None:
            self._note(done)
            self._finishing[choice] = self.answer.writers[choice].script.finish_reason
        if not self.answer.job.stream:
            if done is not None:
                self._left -= 1
                if self._left == 0:
                    self._respond()
        elif not self.exchange.connection.paused:
            self._emit(choice)

    def flush(self) -> None:
        """The socket takes bytes again: send what has come meanwhile, merged."""
        if FaultKind.FLOOD in self._faults:
            self._flood()
            return
        for choice, (tokens, finish) in enumerate(zip(self._pending, self._finishing, strict=True)):
            if (tokens or finish) and not self.over and self.exchange.writable:
                self._emit(choice)

    def finish_empty(self, reason: str) -> None:
        """End every choice without another token."""
        if self.over:
            return
        for choice in range(len(self.answer.writers)):
            if self.answer.finish_reasons[choice] is None:
                self._finishing[choice] = reason
        if self.answer.job.stream:
            self.flush()
        else:
            self._respond()

    # ------------------------------------------------------------------ inside

    def _note(self, done: Finished) -> None:
        timing = self.answer.timing
        timing.arrived_at, timing.scheduled_at = done.arrived_at, done.scheduled_at
        timing.first_token_at, timing.last_token_at = done.first_token_at, done.last_token_at
        timing.draft_tokens, timing.accept_histogram = done.draft_tokens, done.accept_histogram
        self.answer.cached_tokens = max(self.answer.cached_tokens, done.cached_tokens)

    def _respond(self) -> None:
        answer = self.answer
        for choice, writer in enumerate(answer.writers):
            writer.write(self._pending[choice], self._with_ids)
            answer.finish_reasons[choice] = self._finishing[choice]
        self.over = True
        self._count()
        if FaultKind.STALL_FIRST in self._faults or FaultKind.STALL in self._faults:
            return
        if FaultKind.DIE in self._faults:
            self.exchange.reset()
        elif FaultKind.CUT in self._faults:
            self.exchange.cut()
        else:
            self.exchange.respond(200, self._dialect.complete(answer), b"application/json", self._headers)

    def _count(self) -> None:
        if self.exchange.record is not None:
            self.exchange.record.tokens = self.answer.completion_tokens

    def _emit(self, choice: int) -> None:
        """Hot: one write per stream and step."""
        answer, finish = self.answer, self._finishing[choice]
        tokens, self._pending[choice] = self._pending[choice], 0
        stalled = self._withhold(choice, tokens)
        if stalled is not None:
            tokens, finish = stalled, None
            if not tokens:
                return
        self._finishing[choice] = None
        writer = answer.writers[choice]
        delta = writer.write(tokens, self._with_ids)
        first = not self._opened
        parts: list[bytes] = []
        if first:
            self._opened = True
            parts += split_events(self._dialect.open(answer))
        parts.append(self._dialect.write(answer, choice, delta, finish))
        last = False
        if finish is not None:
            answer.finish_reasons[choice] = finish
            self._left -= 1
            if self._left == 0:
                last = self.over = True
                parts += split_events(self._dialect.close(answer))
                self._count()
        if self._variants:
            parts = [shape(part, self._variants, first and not index) for index, part in enumerate(parts)]
        self.exchange.send(parts, last)
        if self._faults and not last and self.exchange.record is not None:
            self._break(self.exchange.record.chunks)

    def _withhold(self, choice: int, tokens: int) -> int | None:
        """How many of these tokens a stalled stream still sends; ``None`` = it is not stalled."""
        if not self._faults:
            return None
        if FaultKind.STALL_FIRST in self._faults:
            return 0
        stall = self._faults.get(FaultKind.STALL)
        if stall is None or self.answer.writers[choice].written + tokens <= stall.after:
            return None
        return max(0, stall.after - self.answer.writers[choice].written)

    def _break(self, chunks: int) -> None:
        """Faults that strike after so many chunks."""
        for kind in (FaultKind.DIE, FaultKind.CUT, FaultKind.ERROR_EVENT):
            fault = self._faults.get(kind)
            if fault is None or chunks < fault.after:
                continue
            self.over = True
            self._count()
            if kind is FaultKind.DIE:
                self.exchange.reset()
            elif kind is FaultKind.CUT:
                self.exchange.cut()
            else:
                self.exchange.send(split_events(ERROR_EVENT), last=True)
            return

    def _flood(self) -> None:
        """As many chunks as the socket takes."""
        if self.over or self.exchange.ended:
            return
        limit = self._faults[FaultKind.FLOOD].after
        events = b"" if self._opened else self._dialect.open(self.answer)
        self._opened = True
        for _ in range(FLOOD_BURST):
            if limit and self._flooded >= limit:
                self.over = True
                self.exchange.send([events + self._dialect.close(self.answer)], last=True)
                return
            self._flooded += 1
            events += self._dialect.write(self.answer, 0, NOTHING._replace(tokens=1, content=FLOOD_WORDS), None)
            self.exchange.send([events])
            events = b""
            if not self.exchange.writable:
                return
        self.exchange.connection.loop.call_soon(self._flood)


def split_events(events: bytes) -> list[bytes]:
    """Each event by itself."""
    return [event + b"\n\n" for event in events.split(b"\n\n") if event]
