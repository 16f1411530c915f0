"""Holds what keeps traffic out beside its own limits: the level of brownout an operator forced, and the ceilings that
burning budgets set. Both are part of the core's config, so a journal has them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from service.flow.band import BEST_EFFORT, EXCESS, RANKS_MAX
from service.flow.config import FlowConfig
from service.slo.restraint import Ceilings, Restraint, Strain

_FREE = 1.0 - 1e-9


class Pressure:
    """``apply`` is given a whole config whenever it changes. An operator may switch restraint off, which ends it at
    once; a level of brownout stands beside it."""

    def __init__(self, flow: FlowConfig, apply: Callable[[FlowConfig], None]) -> None:
        self._flow, self._apply = flow, apply
        self._restraint = Restraint()
        self._ceilings: tuple[tuple[int, float], ...] = ()
        self.brownout_level = 0
        self.restrained = True
        """Whether burning budgets may hold traffic back."""

    def reconfigure(self, flow: FlowConfig) -> None:
        """Another configuration is in force."""
        self._flow = flow
        self._tell()

    def force_brownout(self, level: int) -> None:
        """Refuse what this level keeps out."""
        self.brownout_level = level
        self._tell()

    def restrain(self, on: bool) -> None:
        """The operator's word on restraint; said again, it begins anew."""
        self.restrained, self._restraint = on, Restraint()
        self._set(())

    def observe(self, strains: Iterable[Strain], now: float) -> None:
        """Look at the budgets; the core is told only if a ceiling has moved."""
        if self.restrained:
            self._set(list_ceilings(self._restraint.observe(self._flow.tiers.values(), strains, now)))

    def ceilings(self) -> Mapping[str, float]:
        """Those in force, by band."""
        return {str(band): ceiling for band, ceiling in self._ceilings}

    def describe(self) -> Mapping[str, object]:
        """For operators: whether budgets may hold back, and whom they do."""
        return {"on": self.restrained, "ceilings": self.ceilings()}

    def _set(self, ceilings: tuple[tuple[int, float], ...]) -> None:
        if ceilings != self._ceilings:
            self._ceilings = ceilings
            self._tell()

    def _tell(self) -> None:
        shedding = replace(
            self._flow.shedding, brownout_forced=self.brownout_level, ceilings=self._ceilings
        )  # fmt: skip
        self._apply(replace(self._flow, shedding=shedding))


def list_ceilings(ceilings: Ceilings) -> tuple[tuple[int, float], ...]:
    """By band of the core, dearest first; those that hold nobody back are left out."""
    found = [(min(rank, RANKS_MAX - 1), ceiling) for rank, ceiling in ceilings.within.items()]
    found += [(EXCESS + min(rank, RANKS_MAX - 1), ceiling) for rank, ceiling in ceilings.excess.items()]
    found.append((BEST_EFFORT, ceilings.best_effort))
    return tuple(sorted((band, round(ceiling, 6)) for band, ceiling in found if ceiling < _FREE))
