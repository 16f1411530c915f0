"""One request that waits, with everything that decides its place in the queue."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.domain.estimate import Estimate
from service.domain.request import Request
from service.domain.units import WorkerId
from service.flow.calibration import Quantile

NOWHERE: frozenset[WorkerId] = frozenset()
"""The workers on which a fresh request has failed."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A request in the queue.

    ``due_at`` is when its first token is promised, ``None`` where nothing is or where the promise cannot be kept even
    by an idle worker. ``give_up_at`` is the latest moment at which it may still be dispatched. ``hold_s`` is how long
    it will occupy a permit, ``work_s`` what it costs in worker-seconds. ``failed_on`` are workers it must not be sent
    to again; ``tpot_s`` is the time per token it was promised; ``revoked`` counts how often it was taken back.
    ``known`` says how many bytes of its prompt each cache (``flow.prefix``) held when a place was last looked for,
    ``known_most_bytes`` how many the best of those that can be used; ``home`` is the worker it waits for alone because
    of that (``flow.affinity``).
    ``prefill_s`` is the time to its first token on an idle worker; ``foreseen_s`` when it was expected, from arrival,
    as it began to wait; ``calibration`` is its tier's.
    """

    request: Request
    estimate: Estimate
    band: int
    due_at: float | None
    give_up_at: float
    hold_s: float
    work_s: float
    sequence: int
    tpot_s: float | None = None
    spare_tokens: float = 0.0
    attempt: int = 1
    failed_on: frozenset[WorkerId] = NOWHERE
    revoked: int = 0
    gone: bool = False
    home: WorkerId | None = None
    known: Mapping[int, int] | None = None
    known_most_bytes: int = 0
    prefill_s: float = 0.0
    foreseen_s: float | None = None
    calibration: Quantile = field(default_factory=lambda: Quantile(0.95))

    def renew(self, sequence: int, attempt: int, failed_on: frozenset[WorkerId], revoked: int) -> "Waiting":
        """The entry under which it waits again after it came back from a worker, with all the patience it has left; the
        queue's heaps may still hold this one."""
        return Waiting(
            self.request, self.estimate, self.band, self.due_at, self.request.deadline_at, self.hold_s, self.work_s,
            sequence, self.tpot_s, self.spare_tokens, attempt, failed_on, revoked, prefill_s=self.prefill_s,
            calibration=self.calibration,
        )  # fmt: skip

    @property
    def choosy(self) -> bool:
        """Whether not every worker will do, so that it must not hold up those behind it."""
        return bool(self.failed_on) or self.request.pinned_to is not None

    @property
    def order(self) -> tuple[float, int]:
        """Earliest deadline first; what has none, by the end of its patience; then in order of arrival."""
        return (self.request.deadline_at if self.due_at is None else self.due_at, self.sequence)
