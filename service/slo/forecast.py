"""Foresees a demand that comes as a series of readings: by its damped trend, and by the same time of earlier periods.

Readings are averaged over cells of ``cell_s``. Over the cells runs Holt's linear trend with damping (Gardner and
McKenzie 1985, https://doi.org/10.1287/mnsc.31.10.1237):

    level_t = a * y_t + (1 - a) * (level_{t-1} + phi * trend_{t-1})
    trend_t = b * (level_t - level_{t-1}) + (1 - b) * phi * trend_{t-1}
    yhat_{t+h} = level_t + (phi + phi^2 + ... + phi^h) * trend_t

and beside it the pattern of the last period that is remembered, scaled by how today compares with it:

    yhat_{t+h} = mean(y_{t+h-P}, a few cells around) * clamp(mean(y, last half hour) / mean(y_{-P}, same half hour))

The forecast is the greater of the two: demand that is foreseen in vain costs a worker for a while, demand that is not
foreseen costs promises.

*Trade-offs*: a first period has only its trend; a holiday is forecast as an ordinary day and costs money, not promises.
"""

from collections import deque
from dataclasses import dataclass
from math import floor, sqrt

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class ForecastConfig:
    """Weights per cell of a minute. ``level_weight`` and ``trend_weight`` are a and b, ``damping`` is phi.

    Found by a sweep of the day simulator (``loadtests.sim.day``); ``periods_s`` are tried in order: the week first,
    because Saturdays are not Fridays.
    """

    cell_s: float = 60.0
    level_weight: float = 0.3
    trend_weight: float = 0.08
    damping: float = 0.95
    periods_s: tuple[float, ...] = (7.0 * DAY_S, DAY_S)
    compare_cells: int = 30
    around_cells: int = 2
    ratio_least: float = 0.6
    ratio_most: float = 1.6
    error_keep: float = 0.995
    """Squared errors keep this much of their weight per cell: a half-life of some two hours."""
    gap_cells_max: int = 10
    """After a longer silence the trend begins anew."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """The greatest demand foreseen from now to the horizon, and the root mean square error of forecasts so far."""

    value: float
    sigma: float
    by_pattern: bool


class Forecast:
    """One series. Moments must not go back; a value that is not a finite number must not get here."""

    def __init__(self, config: ForecastConfig, lead_s: float) -> None:
        self._config = config
        self._lead = max(round(lead_s / config.cell_s), 1)
        self._growth = sum(config.damping**step for step in range(1, self._lead + 1))
        self._periods = [round(period_s / config.cell_s) for period_s in config.periods_s]
        self._cells: dict[int, float] = {}
        self._level: float | None = None
        self._trend = 0.0
        self._cell: int | None = None
        self._sum, self._count = 0.0, 0
        self._pending: deque[tuple[int, float]] = deque()
        self._errors, self._weight = 0.0, 0.0
        self._foreseen: Foreseen | None = None
        self.absolute_errors: tuple[float, float, int] = (0.0, 0.0, 0)
        """Sum of absolute errors, sum of what was seen, and how many forecasts were judged."""

    def observe(self, at: float, value: float) -> None:
        """``value`` was read at ``at`` (seconds since the epoch, so that cells are the same for every observer)."""
        cell = floor(at / self._config.cell_s)
        if self._cell is not None and cell != self._cell:
            self._close(self._cell, cell)
        self._cell = cell
        self._sum += value
        self._count += 1

    def remember(self, at: float, value: float) -> None:
        """An earlier period had ``value`` at ``at``: known as a pattern without being a reading of the present."""
        self._cells[floor(at / self._config.cell_s)] = value

    @property
    def level(self) -> float | None:
        """Smoothed demand of the present; ``None`` before the first cell is over."""
        return self._level

    def foresee(self) -> Foreseen | None:
        """The greatest demand between now and ``lead_s`` from now; ``None`` before the first cell is over."""
        return self._foreseen

    def _close(self, cell: int, following: int) -> None:
        config = self._config
        value = self._sum / self._count
        self._sum, self._count = 0.0, 0
        self._cells[cell] = value
        self._cells.pop(cell - self._periods[0] - 2 * config.compare_cells, None)
        if self._level is None:
            self._level = value
        else:
            before = self._level
            self._level += config.damping * self._trend
            self._level += config.level_weight * (value - self._level)
            self._trend *= config.damping
            self._trend += config.trend_weight * (self._level - before - self._trend)
        if following - cell > config.gap_cells_max:
            self._level, self._trend, self._foreseen = None, 0.0, None
            self._pending.clear()
            return
        self._judge(cell, value)
        pattern = self._list_pattern(cell)
        # Its error is measured on the forecast for exactly the horizon.
        then = max(self._level + self._growth * self._trend, pattern[-1] if pattern else 0.0, 0.0)
        self._pending.append((cell + self._lead, then))
        trend, best = max(self._level, self._level + self._growth * self._trend), max(pattern, default=0.0)
        sigma = sqrt(self._errors / self._weight) if self._weight else 0.0
        self._foreseen = Foreseen(max(trend, best), sigma, best > trend)

    def _judge(self, cell: int, value: float) -> None:
        config = self._config
        while self._pending and self._pending[0][0] <= cell:
            at, predicted = self._pending.popleft()
            if at == cell:
                self._errors = self._errors * config.error_keep + (value - predicted) ** 2
                self._weight = self._weight * config.error_keep + 1.0
                off, seen, count = self.absolute_errors
                self.absolute_errors = (off + abs(value - predicted), seen + value, count + 1)

    def _list_pattern(self, cell: int) -> list[float]:
        """The pattern from now to the horizon, every other cell and the last; empty if no period is remembered."""
        config = self._config
        today = self._mean(cell - config.compare_cells, cell)
        for period in self._periods:
            past = self._mean(cell - period - config.compare_cells, cell - period)
            if not past or today is None:
                continue
            ratio = min(max(today / past, config.ratio_least), config.ratio_most)
            around = config.around_cells
            aheads = (*range(0, self._lead, 2), self._lead)
            then = [self._mean(cell - period + ahead - around, cell - period + ahead + around) for ahead in aheads]
            if then[-1] is not None:
                return [ratio * value for value in then if value is not None]
        return []

    def _mean(self, first: int, last: int) -> float | None:
        found = [value for cell in range(first, last + 1) if (value := self._cells.get(cell)) is not None]
        return sum(found) / len(found) if 2 * len(found) > last - first else None
