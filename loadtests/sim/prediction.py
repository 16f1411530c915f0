"""How far first tokens are foreseen, and whether clients that come back when told are let in.

``python -m loadtests.sim.prediction`` runs the drift scenario and waves of load, prints what was found and writes
``prediction.{json,md,png}``. Three questions, each with its bar:

* The median of |foreseen - observed| / observed, of the time from dispatch to first token as foreseen at dispatch.
* The share of first tokens that came within the bound foreseen, by tier and window of ten minutes: from arrival, as
  foreseen at arrival (whether the request was sent at once or had to wait), and from dispatch.
* Of clients that were refused and came back exactly after ``Retry-After``, the share that was let in.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loadtests.sim.arrivals import Process, Stretch
from loadtests.sim.measure import Fate, compute_percentile, find_fate
from loadtests.sim.population import Client, Retry
from loadtests.sim.report import REPORTS
from loadtests.sim.run import Job, build_world
from loadtests.sim.scenario import SCENARIOS, Scenario
from loadtests.sim.world import Attempt, World

WINDOW_S = 600.0
ERROR_BAR, COVERAGE_BAR, COVERAGE_SLACK, RETURN_BAR = 0.15, 0.95, 0.02, 0.9

WAVES = tuple(Stretch(40.0 + 60.0 * wave, 52.0 + 60.0 * wave, 2.5) for wave in range(5))
"""Twelve seconds in each minute bring two and a half times the load."""


@dataclass(frozen=True, slots=True)
class Window:
    """One tier in ten minutes."""

    tier: str
    begin_s: float
    dispatched: int
    error: float | None
    covered_dispatch: float | None
    admitted: int
    covered_arrival: float | None


@dataclass(frozen=True, slots=True)
class Returns:
    """Second tries at one load: those within a contract, and those beyond."""

    scenario: str
    load: float
    within: int
    within_admitted: int
    beyond: int
    beyond_admitted: int

    @property
    def ratio(self) -> float | None:
        """The share of all that was let in."""
        total = self.within + self.beyond
        return (self.within_admitted + self.beyond_admitted) / total if total else None


def _share(hits: Iterable[bool]) -> float | None:
    found = list(hits)
    return sum(found) / len(found) if found else None


def find_windows(world: World) -> list[Window]:
    """Figures of all tiers by window of arrival, the warm-up left out."""
    warmup_s = world.scenario.warmup_s
    cells: dict[tuple[str, int], list[Attempt]] = {}
    for attempt in world.attempts:
        if attempt.arrived_at >= warmup_s and attempt.first_token_at is not None:
            key = (str(world.tiers[attempt.offer.tenant].name), int((attempt.arrived_at - warmup_s) // WINDOW_S))
            cells.setdefault(key, []).append(attempt)
    return [_sum_up(tier, warmup_s + index * WINDOW_S, cells[tier, index]) for tier, index in sorted(cells)]


def _sum_up(tier: str, begin_s: float, attempts: Sequence[Attempt]) -> Window:
    errors, dispatch, arrival = [], [], []
    for attempt in attempts:
        if attempt.first_token_at is None:
            continue
        if attempt.prediction is not None and attempt.predicted_at is not None:
            seen_s = attempt.first_token_at - attempt.predicted_at
            errors.append(abs(attempt.prediction[0] - seen_s) / seen_s)
            dispatch.append(seen_s <= attempt.prediction[1])
        if attempt.bound_s is not None and attempt.dispatches == 1:
            arrival.append(attempt.first_token_at - attempt.arrived_at <= attempt.bound_s)
    return Window(
        tier, begin_s, len(errors), compute_percentile(errors, 0.5), _share(dispatch), len(arrival), _share(arrival)
    )


def find_error(world: World) -> float | None:
    """The median absolute error over all that arrived after the warm-up."""
    errors = []
    for attempt in world.attempts:
        known = attempt.prediction is not None and attempt.predicted_at is not None
        if known and attempt.first_token_at is not None and attempt.arrived_at >= world.scenario.warmup_s:
            seen_s = attempt.first_token_at - attempt.predicted_at  # type: ignore[operator]
            errors.append(abs(attempt.prediction[0] - seen_s) / seen_s)  # type: ignore[index]
    return compute_percentile(errors, 0.5)


def find_returns(world: World, name: str) -> Returns:
    """Second tries of clients that return when told."""
    within = within_admitted = beyond = beyond_admitted = 0
    for attempt in world.attempts:
        if attempt.tries == 1:
            admitted = find_fate(attempt) not in (Fate.REFUSED, Fate.EXPIRED)
            within += attempt.in_contract
            within_admitted += attempt.in_contract and admitted
            beyond += not attempt.in_contract
            beyond_admitted += admitted and not attempt.in_contract
    return Returns(name, world.scenario.load, within, within_admitted, beyond, beyond_admitted)


def build_told(scenario: Scenario, load: float, waves: bool) -> Scenario:
    """The scenario with clients that come back once, when told."""
    told = Client(Retry.TOLD, retries_max=1)
    shape = WAVES if waves else ()
    tenants = tuple(replace(one, client=told, arrivals=Process(shape=shape)) for one in scenario.tenants)
    return replace(scenario, load=load, duration_s=300.0, tenants=tenants)


def run(scenario: Scenario, seed: int) -> World:
    """One run of the shipped policy."""
    world = build_world(Job(scenario, "sluice", seed))
    world.run()
    return world


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio * 100:.1f} %"


def write(errors: Sequence[float | None], runs: Sequence[Sequence[Window]], told: Sequence[Returns], out: Path) -> str:
    """JSON, Markdown and, if matplotlib is there, a picture. Returns the Markdown."""
    out.mkdir(parents=True, exist_ok=True)
    record = {
        "bars": {"error": ERROR_BAR, "coverage": [COVERAGE_BAR - COVERAGE_SLACK, COVERAGE_BAR + COVERAGE_SLACK],
                 "returns": RETURN_BAR},
        "median_absolute_error": list(errors),
        "windows": [
            [{name: getattr(window, name) for name in Window.__slots__} for window in windows] for windows in runs
        ],
        "returns": [{name: getattr(one, name) for name in Returns.__slots__} | {"ratio": one.ratio} for one in told],
    }  # fmt: skip
    (out / "prediction.json").write_text(json.dumps(record, indent=1) + "\n")
    lines = ["# How far first tokens are foreseen", "", f"Scenario `drift`: {SCENARIOS['drift'].about}.", ""]
    lines += [f"Median absolute error (bar {_percent(ERROR_BAR)}): {', '.join(map(_percent, errors))}.", ""]
    lines += ["| seed | tier | from s | first tokens | error | within P95, from dispatch | from arrival |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for seed, windows in enumerate(runs, 1):
        lines += [
            f"| {seed} | {one.tier} | {one.begin_s:.0f} | {one.dispatched} | {_percent(one.error)} | "
            f"{_percent(one.covered_dispatch)} | {_percent(one.covered_arrival)} |"
            for one in windows
        ]
    lines += ["", f"Clients that came back when told (bar {_percent(RETURN_BAR)}):", ""]
    lines += ["| scenario | load | within contract | beyond it | all |", "|---|---|---|---|---|"]
    for one in told:
        within = f"{one.within_admitted} of {one.within}"
        beyond = f"{one.beyond_admitted} of {one.beyond}"
        lines.append(f"| {one.scenario} | {one.load:g} | {within} | {beyond} | {_percent(one.ratio)} |")
    text = "\n".join(lines) + "\n"
    (out / "prediction.md").write_text(text)
    return text


def draw(world: World, out: Path) -> None:
    """Foreseen against observed, and coverage over time."""
    try:
        import matplotlib as mpl
    except ImportError:
        return
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13.0, 5.0))
    known = [one for one in world.attempts if one.prediction is not None and one.first_token_at is not None]
    foreseen = [one.prediction[0] for one in known[::10]]  # type: ignore[index]
    seen = [one.first_token_at - one.predicted_at for one in known[::10]]  # type: ignore[operator]
    left.loglog(foreseen, seen, ".", markersize=2, alpha=0.4)
    ends = [min(seen), max(seen)]
    left.loglog(ends, ends, "k-", linewidth=0.8)
    left.loglog(ends, [end / (1.0 - ERROR_BAR) for end in ends], "k:", linewidth=0.8)
    left.loglog(ends, [end / (1.0 + ERROR_BAR) for end in ends], "k:", linewidth=0.8)
    left.set_xlabel("foreseen at dispatch, s")
    left.set_ylabel("observed, s")
    left.set_title("time from dispatch to first token")
    for tier in sorted({str(tier.name) for tier in world.tiers}):
        hits: dict[int, list[bool]] = {}
        for one in world.attempts:
            mine = str(world.tiers[one.offer.tenant].name) == tier
            if mine and one.bound_s is not None and one.first_token_at is not None and one.dispatches == 1:
                within = one.first_token_at - one.arrived_at <= one.bound_s
                hits.setdefault(int(one.arrived_at // 120.0), []).append(within)
        moments = sorted(hits)
        shares = [100.0 * sum(hits[moment]) / len(hits[moment]) for moment in moments]
        right.plot([moment * 2.0 for moment in moments], shares, marker="o", markersize=3, label=tier)
    right.axhspan(93.0, 97.0, alpha=0.15)
    right.set_xlabel("minute")
    right.set_title("% of first tokens within the P95 foreseen at arrival, by two minutes")
    right.legend()
    figure.tight_layout()
    figure.savefig(out / "prediction.png", dpi=90)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.sim.prediction", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="runs of the drift scenario (2)")
    parser.add_argument("--duration", type=float, default=SCENARIOS["drift"].duration_s, help="seconds of it")
    parser.add_argument("--out", type=Path, default=REPORTS, help="folder of the reports")
    args = parser.parse_args(arguments)
    errors, runs = [], []
    for seed in range(1, args.seeds + 1):
        world = run(replace(SCENARIOS["drift"], duration_s=args.duration), seed)
        errors.append(find_error(world))
        runs.append(find_windows(world))
        if seed == 1:
            args.out.mkdir(parents=True, exist_ok=True)
            draw(world, args.out)
    told = []
    for name, load, waves in (
        ("waves", 0.6, True),
        ("waves", 0.8, True),
        ("steady", 1.2, False),
        ("steady", 2.0, False),
    ):
        scenario = build_told(SCENARIOS["mixed"], load, waves)
        if args.duration < scenario.duration_s:
            scenario = replace(scenario, duration_s=args.duration, warmup_s=5.0, workers=2)
        told.append(find_returns(run(scenario, 1), name))
    print(write(errors, runs, told, args.out))  # noqa: T201 - a command prints
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
