"""Says how much of one measure (requests, tokens) one gateway may still spend within the minute.

Three ways to know it, in this order:

* A *lease*: so much was taken out of the tenant's minute for this gateway alone, and is spent from here.
* The *share*: nobody can be asked, so of what was free when last heard of, each of N gateways spends an Nth::

      free = ceil((limit - known) / N) - own        known: what the fleet had spent, own: what was spent here since

  ``known`` and ``own`` leave the minute as time goes on. While all N gateways have lost the store together and know the
  same, the sum of their shares is the limit.
* With N = 1 and nothing known the share is the whole quota: that is the gateway without a store.
"""

from math import ceil

from service.flow.lease import Amounts, Ask, Share
from service.flow.window import SlidingWindow, is_past, slot_of


class Budget:
    """One measure of one tenant at one gateway.

    ``held`` is what is left of the lease; negative is a debt, since an answer that turns out longer than foreseen is
    charged and not cut. ``spare`` is what the store had left for everybody at the last word.
    """

    __slots__ = ("_known", "_own", "_said", "_spent", "exhausted", "held", "limit", "spare")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.spare = 0
        self.exhausted = False
        """The store's last word was that there is not as much as was needed."""
        self._known: SlidingWindow | None = None
        self._own = SlidingWindow()
        self._said: SlidingWindow | None = None  # told to the store, which has not said that it heard
        self._spent = 0

    def free(self, leased: bool, replicas: int, now: float) -> int:
        """What may be spent now."""
        if leased:
            return self.held
        known = 0 if self._known is None else self._known.advance(now)
        return ceil((self.limit - known) / replicas) - self._spent_here(now)

    def is_spent(self, need: int, leased: bool, now: float) -> bool:
        """Whether nobody in the fleet could find ``need``, by the store's last word or by what is known to be spent."""
        if leased and self.exhausted:
            return True
        known = 0 if self._known is None else self._known.advance(now)
        return self.limit - known - self._spent_here(now) < need

    def charge(self, amount: int, now: float) -> int:
        """Spend; the answer is the slot it stands in."""
        slot = slot_of(now)
        self._own.add(amount, slot)
        self.held -= amount
        self._spent += amount
        return slot

    def give_back(self, amount: int, slot: int, now: float) -> None:
        """Undo so much of what was charged in ``slot``; what has left the minute since is nobody's any more."""
        if not is_past(slot, now):
            self._own.add(-amount, slot)
            self.held += amount

    def remaining(self, leased: bool, replicas: int, now: float) -> int:
        """What the tenant may still spend, as far as it is known here; >= 0."""
        left = self.held + self.spare if leased else self.free(False, replicas, now)
        return max(0, left)

    def resets_at(self, now: float) -> float:
        """When all of the limit will be free again if nothing more is spent."""
        latest = self._own.clears_at()
        if latest is not None and self._known is None:
            return latest
        moments = [window.clears_at() for window in self._windows()]
        return max([moment for moment in moments if moment is not None], default=now)

    def frees_at(self, need: int, now: float) -> float:
        """When ``need`` may have become free: of what is spent, the oldest goes first."""
        windows = self._windows()
        missing = need - (self.limit - sum([window.advance(now) for window in windows]))
        moments = [window.frees_at(max(missing, 1)) for window in windows]
        return min([moment for moment in moments if moment is not None], default=now)

    # ---------------------------------------------------------------- the lease

    def report(self, now: float) -> Amounts:
        """What was spent here that the store has not heard of, as (slots ago, amount); the same again until it has."""
        if self._said is None:
            self._own.advance(now)
            self._said, self._own = self._own, SlidingWindow()
        present = slot_of(now)
        self._said.advance(now)
        return [(present - slot, amount) for slot, amount in self._said.entries() if amount]

    def recall(self, now: float) -> Amounts:
        """What the fleet was known to have spent, for a store that has lost it, as (slots ago, amount)."""
        if self._known is None:
            return []
        self._known.advance(now)
        return [(slot_of(now) - slot, amount) for slot, amount in self._known.entries()]

    def ask(self, needed: int, replicas: int, recall: bool, now: float) -> Ask:
        """Report, and ask for a lease: what is ``needed`` at once, and ahead of time as much again or twice what was
        spent since the last one, but no more of it than a quarter of an equal share."""
        ahead = min(max(2 * self._spent, needed), self.limit // (4 * replicas) + 1)
        self._spent = 0
        want = min(needed + ahead, self.limit)
        self.held = min(self.held, want)  # what is given back must not be spent meanwhile
        return Ask(self.limit, want, needed, self.report(now), self.recall(now) if recall else [])

    def accept(self, share: Share, needed: int, now: float) -> None:
        """The store's word, given what was needed when it was asked."""
        self._said = None
        self.held = share.held - self._own.advance(now)
        self.spare = share.spare
        self.exhausted = share.held < needed
        present = slot_of(now)
        if self._known is None:
            self._known = SlidingWindow()
        self._known.replace([(present - ago, amount) for ago, amount in share.spent])

    def _spent_here(self, now: float) -> int:
        said = 0 if self._said is None else self._said.advance(now)
        return said + self._own.advance(now)

    def _windows(self) -> list[SlidingWindow]:
        return [window for window in (self._known, self._said, self._own) if window is not None]
