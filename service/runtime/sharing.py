"""Lets gateways that serve the same workers hear of each other, a few times a second; no request waits for it."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from service.domain.condition import Condition, StoreError
from service.domain.event import Event, ReplicasSeen, ReportDue
from service.domain.replica import ReplicaReport
from service.domain.units import ReplicaId
from service.flow.config import Reconfigured
from service.runtime.clock import sleep
from service.runtime.guard import guard

_log = logging.getLogger("sluice.store")

PERIOD_S = 0.2
"""Between two reports. With it a part follows demand within three reports, 0.6 s, and a gateway that died is counted
out after a lease of five."""


class LoadStore(Protocol):
    """Where reports are published and read."""

    async def exchange(self, report: ReplicaReport) -> Sequence[ReplicaReport]:
        """Publish one and read the others'; ``StoreError`` if that is not known to have happened."""
        ...


class Sharer(Protocol):
    """The driver, as far as it is needed here."""

    def submit(self, event: Event | Reconfigured) -> None:
        """Let it happen."""
        ...

    def report(self) -> ReplicaReport | None:
        """What others should know."""
        ...


class LoadSharing:
    """One gateway's part in it. ``replica_id`` must differ from that of every other gateway, dead ones too."""

    def __init__(self, driver: Sharer, store: LoadStore, replica_id: ReplicaId, now: Callable[[], float]) -> None:
        self._driver = driver
        self._store = store
        self._replica_id = replica_id
        self._now = now
        self.calls: Counter[Condition] = Counter()
        self.condition = Condition.FINE

    def begin(self) -> None:
        """From here on this gateway takes only a part of each worker: to be called before the first request."""
        self._driver.submit(ReportDue(self._replica_id))

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            due_at = self._now() + PERIOD_S
            await self.turn()
            await sleep(max(due_at - self._now(), PERIOD_S / 4))

    async def turn(self) -> None:
        """Say and hear once."""
        guard(None, "a report", self._driver.submit, ReportDue(self._replica_id))
        report = self._driver.report()
        if report is None:
            return
        try:
            others = await self._store.exchange(report)
        except StoreError as error:
            self._note(error.condition, error)
            return
        self._note(Condition.FINE)
        guard(None, "others' reports", self._driver.submit, ReplicasSeen(report.number, tuple(others)))

    def note_fault(self) -> None:
        """A turn failed in our own code."""
        self._note(Condition.FAILED, StoreError(Condition.FAILED, "a fault of our own, see above"))

    def _note(self, condition: Condition, error: StoreError | None = None) -> None:
        self.calls[condition] += 1
        if condition is not self.condition:
            if error is not None:
                _log.warning("other gateways cannot be asked for their load: %s", error)
            else:
                _log.info("other gateways are heard again")
            self.condition = condition
