"""What the shell needs from the outside: eleven small protocols, satisfied structurally by adapters.

``Clock``, ``TenantDirectory``, ``LeaseSource``, ``RecordSource`` and ``Observer`` stand for the house; ``ClientStream``
and ``Dialect`` for the client's side; ``WorkerTransport``, ``WorkerCall``, ``ReplySink`` and ``StreamTap`` for the
worker's.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from service.domain.command import Command
from service.domain.event import Event, FailureCause
from service.domain.outcome import Outcome
from service.domain.record import Changes
from service.domain.tenant import Tenant
from service.domain.units import TenantId, WorkerId
from service.flow.config import Reconfigured
from service.flow.lease import Grant, Report


class Clock(Protocol):
    """Reads the time."""

    @property
    def now(self) -> Callable[[], float]:
        """Monotonic seconds."""
        ...

    @property
    def wall(self) -> Callable[[], float]:
        """Seconds since 1970 UTC, for what people read."""
        ...


Later = Callable[[float, Callable[[], None]], object]
"""Calls a function after some seconds, on the loop."""


class TenantDirectory(Protocol):
    """Knows whose key it is."""

    @property
    def generation(self) -> int:
        """Grows whenever the answer for a key may have changed."""
        ...

    def find(self, key: bytes) -> Tenant | None:
        """The tenant of ``key``, or ``None``; takes the same time whether the key is known or not."""
        ...


class LeaseSource(Protocol):
    """What gateways share of their tenants' quotas. Both calls are short, and raise ``StoreError`` when unanswered."""

    async def exchange(self, reports: Sequence[tuple[TenantId, Report]]) -> list[Grant]:
        """Take reports in, answer them in their order."""
        ...

    async def count_gateways(self, alive_s: float) -> int:
        """Say that this gateway lives; how many have said so within ``alive_s``, itself among them."""
        ...


class RecordSource(Protocol):
    """Tenants and keys that gateways share."""

    async def fetch(self, epoch: str, version: int) -> Changes | None:
        """What has changed since ``version`` of ``epoch``, ``None`` if nothing; raises ``StoreError``."""
        ...


class ClientStream(Protocol):
    """The client's side of one exchange. All methods return at once; writes to a client that left do nothing."""

    @property
    def gone(self) -> bool:
        """The client closed its connection."""
        ...

    @property
    def paused(self) -> bool:
        """The client reads more slowly than we write."""
        ...

    def begin(self, status: int, headers: bytes, length: int | None) -> None:
        """Send status and rendered header lines; ``length`` is the size of the body, ``None`` when unknown."""
        ...

    def write(self, data: bytes) -> None:
        """Send a piece of the body."""
        ...

    def finish(self) -> None:
        """The body is complete."""
        ...

    def release(self) -> None:
        """The request's body is no longer needed."""
        ...

    def cut(self) -> None:
        """Close at once: an answer of known length cannot be completed."""
        ...


class ReplySink(Protocol):
    """Receives one worker's answer, called straight from the socket."""

    def on_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Status and headers (names in lower case)."""
        ...

    @property
    def on_body(self) -> Callable[[bytes], None]:
        """Takes a piece of the body; asked for once, after the head."""
        ...

    def on_end(self) -> None:
        """The body is complete."""
        ...

    def on_failure(self, cause: FailureCause) -> None:
        """The answer cannot be completed; nothing more comes."""
        ...

    def on_fault(self, error: BaseException) -> None:
        """Our own code failed while it took the answer in; nothing more comes."""
        ...


class WorkerCall(Protocol):
    """One request under way to a worker."""

    def abort(self) -> None:
        """Close the connection, so that the worker stops working; the sink hears nothing more."""
        ...

    def pause(self) -> None:
        """Read nothing more for a while."""
        ...

    def resume(self) -> None:
        """Read again."""
        ...


class WorkerTransport(Protocol):
    """Sends requests to workers."""

    def open(
        self, worker_id: WorkerId, target: bytes, headers: bytes, body: Sequence[bytes | memoryview], sink: ReplySink
    ) -> WorkerCall:
        """Send ``target`` (method and path), rendered ``headers`` and ``body``; the answer goes to ``sink``."""
        ...


class StreamTap(Protocol):
    """Reads along while a stream passes; see ``gateway.sse``."""

    first_token: bool
    """A token was seen."""
    done: bool
    """The stream said that it is complete."""
    failed: bool
    """The worker reported an error inside the stream."""
    aborted: bool
    """The worker ended the stream as aborted without a token."""
    events: int
    """Events that passed."""
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None

    @property
    def torn(self) -> bool:
        """The last event was sent on in part."""
        ...

    def feed(self, data: bytes) -> bytes:
        """Look at ``data`` and return what may be sent on now."""
        ...

    def drain(self) -> bytes:
        """What was held back, now that nothing more comes."""
        ...


class Dialect(Protocol):
    """How one API speaks: OpenAI chat, completions and responses, Anthropic messages."""

    def open_tap(self, strip_usage: bool) -> StreamTap:
        """A reader for one event stream; ``strip_usage`` holds the usage chunk back from the client."""
        ...

    @property
    def hold_bytes(self) -> int:
        """How much of a whole answer must be held to be finished; 0 if it passes as it comes."""
        ...

    def finish(self, whole: bytes) -> bytes:
        """A whole answer as it goes to the client."""
        ...

    def read_usage(self, body: bytes) -> tuple[int | None, int | None, int | None]:
        """Prompt, cached and output tokens of an answer or of its end; ``None`` for what it does not say."""
        ...

    def build_refusal(
        self, outcome: Outcome, retry_after_s: float | None, detail: str | None
    ) -> tuple[int, bytes, bytes]:
        """Status, rendered headers and body of an answer that says why there is none."""
        ...

    def adopt_error(self, status: int, content_type: bytes, body: bytes) -> tuple[bytes, bytes]:
        """A worker's own 4xx as it may go to the client: rendered headers and body."""
        ...

    def build_error_events(self, outcome: Outcome) -> bytes:
        """What ends a stream that has begun and cannot go on."""
        ...

    def build_stream_end(self) -> bytes:
        """What follows an error event of the worker's own that ended a stream without its mark."""
        ...

    def build_heartbeat(self) -> bytes:
        """A comment that keeps a silent stream open."""
        ...


class Observer(Protocol):
    """Sees every event with the commands that followed; telemetry and journals are folds over this."""

    def observe(self, now: float, event: Event | Reconfigured, commands: Sequence[Command]) -> None:
        """Called after each event, on the loop: must not block."""
        ...
