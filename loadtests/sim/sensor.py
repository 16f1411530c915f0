"""The gateway's eyes: scrapes of each worker's metrics that lag, get lost, go stale and are noisy.

*Oracle boundary*: a policy learns of workers by these readings and by what happens to its own requests, nothing else.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from loadtests.sim.driver import VirtualDriver
from loadtests.sim.engine import SimWorker
from service.domain.event import WorkerLoadSeen
from service.domain.load import WorkerLoad


@dataclass(frozen=True, slots=True)
class SensorConfig:
    """``lag_s``: from the moment the page is made until it is read. ``loss_ratio``: scrapes that fail. ``noise_cv``:
    error of the gauges (counters are exact). ``dark``: (from, until) in which no scrape succeeds; ``dark_workers``:
    which of them, all if empty.
    """

    every_s: float = 1.0
    lag_s: float = 0.05
    loss_ratio: float = 0.0
    noise_cv: float = 0.0
    dark: tuple[float, float] | None = None
    dark_workers: tuple[int, ...] = ()


class Sensor:
    """Scrapes all workers, each at its own phase of the period."""

    def __init__(
        self, config: SensorConfig, driver: VirtualDriver, workers: Sequence[SimWorker], chance: random.Random
    ) -> None:
        self._config, self._driver, self._chance = config, driver, chance
        for index, worker in enumerate(workers):
            driver.schedule(config.every_s * (index + 1) / len(workers), partial(self._scrape, index, worker))

    def _scrape(self, index: int, worker: SimWorker) -> None:
        config, driver, now = self._config, self._driver, self._driver.now
        driver.schedule(now + config.every_s, partial(self._scrape, index, worker))
        load = worker.read_load(now)
        lost = config.loss_ratio > 0.0 and self._chance.random() < config.loss_ratio
        if load is None or lost or self._is_dark(index, now):
            return
        if config.noise_cv:
            load = _blur(load, lambda: max(0.0, self._chance.gauss(1.0, config.noise_cv)))
        driver.schedule(now + config.lag_s, WorkerLoadSeen(worker.worker_id, load))

    def _is_dark(self, index: int, now: float) -> bool:
        dark, only = self._config.dark, self._config.dark_workers
        return dark is not None and dark[0] <= now < dark[1] and (not only or index in only)


def _blur(load: WorkerLoad, factor: Callable[[], float]) -> WorkerLoad:
    running, waiting, kv = load.running_requests, load.waiting_requests, load.kv_cache_ratio
    return replace(
        load,
        running_requests=None if running is None else round(running * factor()),
        waiting_requests=None if waiting is None else round(waiting * factor()),
        kv_cache_ratio=None if kv is None else min(1.0, kv * factor()),
    )
