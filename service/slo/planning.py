"""Answers what-if questions about capacity from what was asked of a pool: how many workers a promise needs, what one
more contract needs, what breaks when workers die, what another nine costs.

Requests are counted as work, worker-seconds, in cells of a minute. With n workers a cell that is asked for d workers'
worth of work is filled to d/n, and misses what the detailed simulator missed at that fill (``MISS_CURVE``). Dearer
tiers are served first, so a tier's misses are those that its work adds to those of the dearer ones.

*Trade-offs*: a cell knows nothing of the one before, so a queue that is carried over is not seen; bursts shorter than a
cell are in the curve only as far as arrivals by chance are.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

CELL_S = 60.0

MISS_CURVE = (
    (0.0, 0.0), (0.36, 0.0), (0.48, 0.00061), (0.66, 0.00099), (0.72, 0.00272), (0.78, 0.00603), (0.84, 0.01257),
    (0.9, 0.0249), (0.96, 0.03278), (1.08, 0.06588), (1.2, 0.08113), (1.38, 0.1368), (1.56, 0.22261),
    (1.8, 0.43765),
)  # fmt: skip
"""(fill, share that misses) of traffic within contracts, by ``python -m loadtests.sim.curves``: eight workers of the
M3.1 Flash profile, four minutes a point, made monotone. A test holds the two together."""

WORKERS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Rates:
    """What a worker does in a second: prompt tokens read, output tokens written in its best batch."""

    prompt_tokens: float
    output_tokens: float

    def work_s(self, prompt_tokens: float, output_tokens: float) -> float:
        """Worker-seconds of a request."""
        return prompt_tokens / self.prompt_tokens + output_tokens / self.output_tokens


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: when, in which tier by rank, how large. Prompt tokens that come from a cache are left out."""

    at_s: float
    rank: int
    prompt_tokens: float
    output_tokens: float


@dataclass(slots=True)
class Usage:
    """Requests and work by cell and rank. ``requests`` and ``work_s`` have one mapping per cell."""

    requests: list[dict[int, int]] = field(default_factory=list)
    work_s: list[dict[int, float]] = field(default_factory=list)

    @property
    def ranks(self) -> list[int]:
        """All ranks, dearest first."""
        return sorted({rank for cell in self.requests for rank in cell})

    @property
    def hours(self) -> float:
        """How long it was asked."""
        return len(self.requests) * CELL_S / 3600.0

    def demand(self, cell: int) -> float:
        """Workers' worth of work in a cell."""
        return sum(self.work_s[cell].values()) / CELL_S

    def add(self, more: float, rank: int, requests: int) -> "Usage":
        """The same with a steady demand of ``more`` workers beside it, in so many requests a cell."""
        grown = Usage([dict(cell) for cell in self.requests], [dict(cell) for cell in self.work_s])
        for cell in range(len(grown.requests)):
            grown.requests[cell][rank] = grown.requests[cell].get(rank, 0) + requests
            grown.work_s[cell][rank] = grown.work_s[cell].get(rank, 0.0) + more * CELL_S
        return grown


def build_usage(asked: Iterable[Asked], rates: Rates) -> Usage:
    """Add up; the first request begins the first cell.

    Raises:
        ValueError: nothing was asked.
    """
    usage, begin = Usage(), None
    found: dict[int, tuple[dict[int, int], dict[int, float]]] = {}
    for one in asked:
        begin = one.at_s if begin is None else begin
        requests, work = found.setdefault(int((one.at_s - begin) // CELL_S), ({}, {}))
        requests[one.rank] = requests.get(one.rank, 0) + 1
        work[one.rank] = work.get(one.rank, 0.0) + rates.work_s(one.prompt_tokens, one.output_tokens)
    if not found:
        raise ValueError("nothing was asked: there is no request to plan for")
    first, last = min(found), max(found)
    for cell in range(first, last + 1):
        requests, work = found.get(cell, ({}, {}))
        usage.requests.append(requests)
        usage.work_s.append(work)
    return usage


def find_miss(fill: float) -> float:
    """Share of requests that miss at this fill; beyond the curve all that is too much misses."""
    index = bisect_right([point[0] for point in MISS_CURVE], fill)
    if index == len(MISS_CURVE):
        last_fill, last_miss = MISS_CURVE[-1]
        return 1.0 - (1.0 - last_miss) * last_fill / fill
    (low, low_miss), (high, high_miss) = MISS_CURVE[index - 1], MISS_CURVE[index]
    return low_miss + (fill - low) / (high - low) * (high_miss - low_miss)


def compute_attainment(usage: Usage, workers: float) -> dict[int, float]:
    """Good over asked, by rank."""
    met: dict[int, float] = dict.fromkeys(usage.ranks, 0.0)
    counts: dict[int, int] = dict.fromkeys(usage.ranks, 0)
    for requests, work in zip(usage.requests, usage.work_s, strict=True):
        above, missed_above = 0.0, 0.0
        for rank in sorted(requests):
            own = work[rank] / CELL_S
            fill = (above + own) / workers if workers > 0 else float("inf")
            missed = (above + own) * (find_miss(fill) if workers > 0 else 1.0)
            share = min(max((missed - missed_above) / own, 0.0), 1.0) if own > 0.0 else 0.0
            above, missed_above = above + own, max(missed, missed_above)
            met[rank] += requests[rank] * (1.0 - share)
            counts[rank] += requests[rank]
    return {rank: met[rank] / counts[rank] for rank in counts}


def total_attainment(usage: Usage, workers: float) -> float:
    """Good over asked, over all ranks."""
    by_rank = compute_attainment(usage, workers)
    counts = {rank: sum(cell.get(rank, 0) for cell in usage.requests) for rank in by_rank}
    return sum(by_rank[rank] * counts[rank] for rank in by_rank) / sum(counts.values())


def find_workers(usage: Usage, attainment: float) -> int:
    """The fewest workers, always there, with which so much is met.

    Raises:
        ValueError: no number of workers does it.
    """
    high = 1
    while total_attainment(usage, high) < attainment:
        high *= 2
        if high > WORKERS_MAX:
            raise ValueError(f"{attainment:.4%} is not met even by {WORKERS_MAX:,} workers")
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if total_attainment(usage, middle) < attainment:
            low = middle
        else:
            high = middle
    return high


def count_following_hours(usage: Usage, attainment: float, lead_s: float) -> float:
    """Worker-hours of a pool that always has what the coming ``lead_s`` needs, and nothing to spare."""
    fill, bearable = MISS_CURVE[-1][0], 1.0 - attainment
    for (low, low_miss), (high, high_miss) in pairwise(MISS_CURVE):
        if high_miss > bearable >= low_miss:
            fill = low + (high - low) * (bearable - low_miss) / (high_miss - low_miss)
            break
    ahead = max(round(lead_s / CELL_S), 1)
    demand = [usage.demand(cell) for cell in range(len(usage.requests))]
    needed = [-(-max(demand[cell : cell + ahead]) // fill) for cell in range(len(demand))]
    return sum(needed) * CELL_S / 3600.0


@dataclass(frozen=True, slots=True)
class Loss:
    """What is left when ``lost`` workers die: attainment by rank over everything, and in the worst hour."""

    name: str
    lost: int
    overall: Mapping[int, float]
    worst_hour: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an attainment needs: workers always there, their worker-hours, and those of a pool that follows demand."""

    attainment: float
    workers: int
    fixed_hours: float
    following_hours: float


@dataclass(frozen=True, slots=True)
class Answer:
    """All of it. ``capacities`` are ascending in attainment; the first one asked for is ``wanted``."""

    hours: float
    mean_demand: float
    peak_demand: float
    wanted: Capacity
    capacities: Sequence[Capacity]
    losses: Sequence[Loss]
    contract: Capacity | None
    curve: Sequence[tuple[int, float]]


def find_worst_hour(usage: Usage) -> Usage:
    """The 60 cells with the most work."""
    length = min(60, len(usage.requests))
    demand = [usage.demand(cell) for cell in range(len(usage.requests))]
    sums = [sum(demand[begin : begin + length]) for begin in range(len(demand) - length + 1)]
    begin = max(range(len(sums)), key=sums.__getitem__)
    return Usage(usage.requests[begin : begin + length], usage.work_s[begin : begin + length])


def size(usage: Usage, attainment: float, lead_s: float) -> Capacity:
    """What ``attainment`` needs."""
    workers = find_workers(usage, attainment)
    return Capacity(attainment, workers, workers * usage.hours, count_following_hours(usage, attainment, lead_s))


def answer(
    usage: Usage, attainment: float, zones: int, lead_s: float, contract: tuple[float, int, int] | None
) -> Answer:
    """Every question at once. ``contract``: one more, as workers' worth of work, rank, and requests a cell.

    Raises:
        ValueError: an attainment that no number of workers reaches.
    """
    wanted = size(usage, attainment, lead_s)
    goals = sorted({attainment, 0.99, 0.995, 0.999})
    demand = [usage.demand(cell) for cell in range(len(usage.requests))]
    worst = find_worst_hour(usage)
    losses = [
        Loss(
            name,
            lost,
            compute_attainment(usage, wanted.workers - lost),
            compute_attainment(worst, wanted.workers - lost),
        )
        for name, lost in (("nobody", 0), ("one worker", 1), ("one zone", -(-wanted.workers // zones)))
    ]
    most = 2 * wanted.workers
    steps = range(max(wanted.workers // 3, 1), most + 1, max(most // 40, 1))
    return Answer(
        usage.hours, sum(demand) / len(demand), max(demand), wanted,
        [size(usage, goal, lead_s) for goal in goals], losses,
        None if contract is None else size(usage.add(*contract), attainment, lead_s),
        [(workers, total_attainment(usage, workers)) for workers in steps],
    )  # fmt: skip
