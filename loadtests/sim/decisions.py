"""Measures what one decision of the flow core costs: ``python -m loadtests.sim.decisions``.

One decision is one event handled, the commands it yields and the question when to wake next, as both shells ask it.
Two loads per length of queue, each held at that length while it is measured:

* ``serve``: a request ends (the next in line is sent) and another arrives (it waits): two decisions;
* ``refuse``: a request arrives at a full queue and is refused: one decision.

Times are CPU seconds of this process, the best of several rounds, so that neighbours on the machine do not count.
The garbage collector is off while a round is timed, as ``timeit`` does it; the service freezes what it starts with.
"""

import argparse
import cProfile
import gc
import json
import platform
import pstats
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from service.domain.contract import Allowance
from service.domain.event import Event, FirstTokenSeen, PermitEnded, RequestArrived, WorkerHealthChanged, WorkerJoined
from service.domain.permit import PermitEnding
from service.domain.request import Request
from service.domain.tier import Tier
from service.domain.units import RequestId, TenantId, TierName, WorkerId
from service.flow.config import FlowConfig
from service.flow.controller import FlowController

QUEUES = (0, 100, 1_000, 10_000, 100_000)
WORKERS = 32
PER_WORKER = 256
TENANTS = 1_000
TIERS = {
    TierName("standard"): Tier(TierName("standard"), 1),
    TierName("batch"): Tier(TierName("batch"), 2, best_effort=True),
}
NEXT = RequestId("")
"""Stands for the request that has run for longest, or was sent last; which one that is, the policy decides."""

STEP_S = 0.0003
"""Time between two events, so that what workers may be given is earned."""

SERVED = PermitEnded(NEXT, PermitEnding.SERVED, 200)
BEGUN = FirstTokenSeen(NEXT)
CONTRACTS = {TenantId(f"t{number}"): Allowance(0.0, 0.0) for number in range(0, TENANTS, 2)}
REPORT = Path(__file__).parents[1] / "reports" / "decisions.json"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    load: str
    queued_requests: int
    decisions: int
    us_per_decision: float
    decisions_per_s: int


class Bench:
    """A controller with full workers and a queue of ``queued`` requests (none, and a free permit, for 0)."""

    def __init__(self, queued: int, room: int = 2) -> None:
        config = FlowConfig(PER_WORKER, PER_WORKER, queued + room, 1 << 62, tiers=TIERS, contracts=CONTRACTS)
        self.controller = FlowController(config, random.Random(1))  # noqa: S311 - repeatable on purpose
        self.now = 0.0
        self.count = 0
        self.queued = queued
        for number in range(WORKERS):
            self.handle(WorkerJoined(WorkerId(f"w{number}")))
            self.handle(WorkerHealthChanged(WorkerId(f"w{number}"), healthy=True))
            self.controller._state.ledger.worker(WorkerId(f"w{number}")).limit.limit = PER_WORKER  # noqa: SLF001 - as if found
        for _ in range(WORKERS * PER_WORKER + queued - (queued == 0)):
            self.handle(self.build_arrival())
        for name in tuple(self.controller._state.ledger.running):  # noqa: SLF001
            self.handle(FirstTokenSeen(name))

    def handle(self, event: Event) -> None:
        """One decision."""
        self.controller.handle(event, self.now)
        self.controller.next_wake_at()

    def build_arrival(self) -> RequestArrived:
        """The next request, of the next tenant and tier; deadlines lie far off and out of order, so that the heaps have
        work. Half of the tenants have used up what they bought."""
        self.count += 1
        deadline_at = 1e6 + (self.count * 7919) % 10_007
        name, tenant_id = RequestId(f"r{self.count}"), TenantId(f"t{self.count % TENANTS}")
        tier, rank = (("standard", 1), ("standard", 1), ("batch", 2))[self.count % 3]
        return RequestArrived(Request(name, tenant_id, TierName(tier), rank, 32, 256, True, self.now, deadline_at))

    def build_serve(self, turns: int) -> list[Event]:
        """Arrival, end of the request that runs for longest and first token of the one sent last, over and over."""
        return [event for _ in range(turns) for event in (self.build_arrival(), SERVED, BEGUN)]

    def build_refuse(self, turns: int) -> list[Event]:
        """Arrivals at a full queue."""
        return [self.build_arrival() for _ in range(turns)]


def time_events(bench: Bench, events: Iterable[Event]) -> float:
    """CPU seconds for all ``events``."""
    handle, wake, now = bench.controller.handle, bench.controller.next_wake_at, bench.now
    running = bench.controller._state.ledger.running  # noqa: SLF001 - which request runs is not known beforehand
    gc.collect()
    gc.disable()
    try:
        begun = time.process_time()
        for event in events:
            now += STEP_S
            if event is SERVED:
                handle(PermitEnded(next(iter(running)), PermitEnding.SERVED, 200), now)
            elif event is BEGUN:
                handle(FirstTokenSeen(next(reversed(running))), now)
            else:
                handle(event, now)
            wake()
        return time.process_time() - begun
    finally:
        bench.now = now
        gc.enable()


def measure(load: str, queued: int, turns: int, rounds: int) -> Figure:
    """The best of ``rounds`` rounds of ``turns`` turns."""
    bench = Bench(queued, room=0 if load == "refuse" else 2)
    build: Callable[[int], list[Event]] = bench.build_refuse if load == "refuse" else bench.build_serve
    best_s, decisions = float("inf"), 0
    for _ in range(rounds):
        events = build(turns)
        decisions = len(events)
        best_s = min(best_s, time_events(bench, events))
    waiting = bench.controller.stats(bench.now).queued_requests
    if waiting != queued:
        raise RuntimeError(f"the queue went from {queued} to {waiting}: not what was to be measured")
    return Figure(load, queued, decisions, round(best_s / decisions * 1e6, 3), round(decisions / best_s))


def profile(queued: int, turns: int, lines: int) -> None:
    """Print where the time of ``serve`` goes."""
    bench = Bench(queued)
    events = bench.build_serve(turns)
    profiler = cProfile.Profile()
    profiler.enable()
    time_events(bench, events)
    profiler.disable()
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(lines)


def main() -> None:
    """Measure, print the table, write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=10_000, help="turns per round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the best counts")
    parser.add_argument("--profile", type=int, metavar="QUEUED", help="profile with this many queued, and end")
    parser.add_argument("--out", type=Path, default=REPORT, help="where the JSON goes")
    args = parser.parse_args()
    if args.profile is not None:
        profile(args.profile, args.turns, 25)
        return
    figures = []
    print(f"{'load':8}{'queued':>10}{'us/decision':>14}{'decisions/s':>14}")
    for load in ("serve", "refuse"):
        for queued in QUEUES:
            figure = measure(load, queued, args.turns, args.rounds)
            figures.append(figure)
            print(f"{load:8}{queued:>10,}{figure.us_per_decision:>14.2f}{figure.decisions_per_s:>14,}")
    report = {
        "what": "CPU time of one decision of the flow core, one core",
        "python": platform.python_version(),
        "machine": platform.machine(),
        "workers": WORKERS,
        "requests_per_worker": PER_WORKER,
        "tenants": TENANTS,
        "rounds": args.rounds,
        "figures": [asdict(figure) for figure in figures],
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
