"""Follows the tenants and keys of the shared store: asks twice a second what has changed, and tells whoever must know.

While the store does not answer, or has lost what it had, what is known stays known.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from service.domain.condition import Condition, StoreError
from service.domain.record import Changes
from service.runtime.clock import sleep
from service.runtime.ports import RecordSource

_log = logging.getLogger("sluice.store")

PACE_S = 0.5
"""A key that was revoked is good for so long, and for as long as two calls take."""


class Following:
    """``take`` is given what has changed, one after the other."""

    def __init__(self, source: RecordSource, take: Callable[[Changes], Awaitable[None]]) -> None:
        self._source = source
        self._take = take
        self._epoch = ""
        self._version = 0
        self.condition = Condition.FINE
        self.calls: Counter[tuple[str, Condition]] = Counter()

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            await sleep(PACE_S)
            await self.turn()

    async def turn(self) -> None:
        """Ask once."""
        try:
            changes = await self._source.fetch(self._epoch, self._version)
        except StoreError as error:
            self._note(error.condition, error)
            return
        self._note(Condition.FINE, None)
        if changes is None:
            return
        if self._epoch and changes.epoch != self._epoch:  # begun anew, with less than what is known
            changes = Changes(changes.epoch, changes.version, False, changes.records)
        await self._take(changes)
        self._epoch, self._version = changes.epoch, changes.version  # only now: what was not taken is asked for again

    def note_fault(self) -> None:
        """A turn failed in our own code."""
        self._note(Condition.FAILED, StoreError(Condition.FAILED, "a fault of our own, see above"))

    def _note(self, condition: Condition, error: StoreError | None) -> None:
        self.calls["directory", condition] += 1
        if condition is self.condition:
            return
        if error is not None:
            _log.error("tenants and keys stay as they are known: %s", error)
        else:
            _log.warning("tenants and keys are followed again, the store was %s", self.condition.value)
        self.condition = condition
