"""Prints and draws what was measured: a table, JSON for programs, pictures where they say more."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from loadtests.sim.bounds import compute_peak
from loadtests.sim.measure import RunFigures, TierFigures, compute_percentile
from loadtests.sim.scenario import Scenario

REPORTS = Path(__file__).parents[1] / "reports" / "sim"
PICTURE_LOADS_MIN = 3
HEADINGS = (
    "goodput/s", "tok/s", "revenue/s", "wasted %", "refused p99 s", "Jain", "turns/min", "missed by %", "x real",
)  # fmt: skip


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio * 100:.1f}" if 0.0 < ratio < 1.0 else f"{ratio * 100:.0f}"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def build_table(scenario: Scenario, sums: Sequence[RunFigures]) -> Table:
    """A line per load and arm. Attainment: within contract, and of all offered in brackets."""
    names = list(sums[0].tiers)
    machine = f"{scenario.workers} x {scenario.profile}"
    title = f"{scenario.name}: {scenario.about} ({machine}, 1x = {sums[0].capacity_rps:.1f}/s)"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("load")
    table.add_column("arm")
    for name in names:
        table.add_column(f"{name} %", justify="right")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    if scenario.spike is not None:
        table.add_column("recovery s", justify="right")
    for index, run in enumerate(sums):
        if not index or sums[index - 1].load != run.load:
            ideal = [_ideal(run.tiers[name]) for name in names]
            table.add_row(f"{run.load:g}", "ideal", *ideal, _number(run.ideal_rps, 1), style="dim")
        speed = run.virtual_s / run.cpu_s if run.cpu_s else 0.0
        rejections = [sample for tier in run.tiers.values() for sample in tier.rejection_s]
        jains = [jain for tier in run.tiers.values() for jain in tier.jain]
        turns = max((_mean(tier.oscillation_per_min) or 0.0 for tier in run.tiers.values()), default=0.0)
        cells = [
            f"{run.load:g}",
            run.arm,
            *(_attainment(run.tiers[name]) for name in names),
            _number(run.goodput_rps, 1),
            _number(run.goodput_tps, 0),
            _number(run.revenue / run.seconds, 1),
            _percent(run.wasted_ratio),
            _number(compute_percentile(rejections, 0.99)),
            _number(min(jains, default=None)),
            _number(turns, 1),
            _misses(run),
            _number(speed, 0),
        ]
        if scenario.spike is not None:
            cells.append("/".join(_recovery(run.tiers[name]) for name in names))
        table.add_row(*cells)
    return table


def _attainment(tier: TierFigures) -> str:
    if tier.contract_attainment is None or tier.contract_good + tier.contract_bad == tier.good + tier.bad:
        return _percent(tier.attainment)
    return f"{_percent(tier.contract_attainment)} ({_percent(tier.attainment)})"


def _misses(run: RunFigures) -> str:
    """The three commonest reasons of misses within contract, as parts of all that was judged there."""
    misses: Counter[str] = Counter()
    for tier in run.tiers.values():
        misses += tier.misses
    judged = sum(tier.contract_good + tier.contract_bad for tier in run.tiers.values())
    return " ".join(f"{name} {count / judged * 100:.0f}" for name, count in misses.most_common(3)) or "-"


def _ideal(tier: TierFigures) -> str:
    whole, within = _mean(tier.ideal), _mean(tier.contract_ideal)
    return _percent(whole) if within is None or within == whole else f"{_percent(within)} ({_percent(whole)})"


def _recovery(tier: TierFigures) -> str:
    if not tier.recovery_s:
        return "-"
    known = [value for value in tier.recovery_s if value is not None]
    return "never" if len(known) < len(tier.recovery_s) else _number(max(known), 0)


def build_tier_record(tier: TierFigures) -> dict[str, object]:
    """A tier's figures as JSON."""
    calibration = tier.compute_calibration()
    return {
        "offered": tier.offered,
        "good": tier.good,
        "bad": tier.bad,
        "attainment": tier.attainment,
        "contract_attainment": tier.contract_attainment,
        "availability": tier.availability,
        "ideal_attainment": _mean(tier.ideal),
        "ideal_contract_attainment": _mean(tier.contract_ideal),
        "misses_in_contract": dict(sorted(tier.misses.items())),
        "fates": dict(sorted(tier.fates.items())),
        "ttft_s": {f"p{int(q * 100)}": compute_percentile(tier.ttft_s, q) for q in (0.5, 0.95, 0.99)},
        "tpot_s": {f"p{int(q * 100)}": compute_percentile(tier.tpot_s, q) for q in (0.5, 0.95, 0.99)},
        "rejection_p99_s": compute_percentile(tier.rejection_s, 0.99),
        "jain": tier.jain,
        "share_gap": tier.share_gap,
        "recovery_s": tier.recovery_s,
        "oscillation_per_min": tier.oscillation_per_min,
        "prediction": None
        if calibration is None
        else {
            "median_absolute_error_ratio": calibration[0],
            "p95_coverage_worst_window": calibration[1],
            "p95_coverage": calibration[2],
        },
    }


def build_record(run: RunFigures) -> dict[str, object]:
    """A run's figures as JSON."""
    return {
        "arm": run.arm,
        "load": run.load,
        "runs": run.runs,
        "measured_s": run.seconds,
        "goodput_rps": run.goodput_rps,
        "ideal_rps": run.ideal_rps,
        "bound_rps": run.bound_rps,
        "intents": run.intents,
        "intents_good": run.intents_good,
        "goodput_tokens_per_s": run.goodput_tps,
        "revenue_per_s": run.revenue / run.seconds,
        "wasted_ratio": run.wasted_ratio,
        "retry_after_honesty": run.honesty,
        "simulated_s_per_cpu_s": run.virtual_s / run.cpu_s if run.cpu_s else None,
        "tiers": {name: build_tier_record(tier) for name, tier in run.tiers.items()},
    }


def write_report(scenario: Scenario, sums: Sequence[RunFigures], folder: Path) -> list[Path]:
    """JSON, and pictures if matplotlib is there. Returns what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    mean = scenario.compute_mean()
    peak = compute_peak(scenario.engine_profile, mean, scenario.compute_tightest_tpot_s())
    record = {
        "scenario": scenario.name,
        "about": scenario.about,
        "profile": scenario.profile,
        "workers": scenario.workers,
        "capacity_rps": sums[0].capacity_rps,
        "peak_per_worker": {"batch": peak.batch, "requests_per_s": peak.requests_per_s, "tpot_s": peak.tpot_s},
        "runs": [build_record(run) for run in sums],
    }
    path = folder / f"{scenario.name}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return [path, *_draw(scenario, sums, folder)]


def _draw(scenario: Scenario, sums: Sequence[RunFigures], folder: Path) -> list[Path]:
    try:
        import matplotlib as mpl
    except ImportError:
        return []
    mpl.use("Agg")
    if scenario.spike is not None or scenario.faults:
        return [_draw_timelines(scenario, sums, folder)]
    if len({run.load for run in sums}) >= PICTURE_LOADS_MIN:
        return [_draw_loads(scenario, sums, folder)]
    return []


def _draw_loads(scenario: Scenario, sums: Sequence[RunFigures], folder: Path) -> Path:
    """Attainment by tier and goodput, over load."""
    from matplotlib import pyplot as plt

    names = list(sums[0].tiers)
    arms = list(dict.fromkeys(run.arm for run in sums))
    figure, axes = plt.subplots(1, len(names) + 1, figsize=(4.5 * (len(names) + 1), 4.0), squeeze=False)
    for arm in arms:
        mine = [run for run in sums if run.arm == arm]
        loads = [run.load for run in mine]
        width = 2.5 if arm == "sluice" else 1.2
        for axis, name in zip(axes[0], names, strict=False):
            tiers = [run.tiers[name] for run in mine]
            chosen = [one.attainment if one.contract_attainment is None else one.contract_attainment for one in tiers]
            axis.plot(loads, [100.0 * (ratio or 0.0) for ratio in chosen], marker="o", label=arm, linewidth=width)
        axes[0][-1].plot(loads, [run.goodput_rps for run in mine], marker="o", label=arm, linewidth=width)
    first = [run for run in sums if run.arm == arms[0]]
    for axis, name in zip(axes[0], names, strict=False):
        ideal = [100.0 * (_mean(run.tiers[name].contract_ideal or run.tiers[name].ideal) or 0.0) for run in first]
        axis.plot([run.load for run in first], ideal, color="black", linestyle="--", label="ideal")
        axis.set_title(f"{name}: attainment, %")
        axis.set_ylim(-2, 102)
    axes[0][-1].plot([run.load for run in first], [run.ideal_rps for run in first], "k--", label="ideal")
    axes[0][-1].set_title("goodput, requests/s")
    for axis in axes[0]:
        axis.set_xlabel("load, x capacity")
        axis.grid(alpha=0.3)
    axes[0][-1].legend(fontsize=8)
    path = folder / f"{scenario.name}.png"
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)
    return path


def _draw_timelines(scenario: Scenario, sums: Sequence[RunFigures], folder: Path) -> Path:
    """Per arm: offered and good per second by tier, and what waits or runs."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(sums), 2, figsize=(12.0, 2.4 * len(sums)), squeeze=False, sharex=True)
    for row, run in zip(axes, sums, strict=True):
        for name, tier in run.tiers.items():
            seconds = sorted(tier.timeline)
            (line,) = row[0].plot(seconds, [tier.timeline[second][1] / run.runs for second in seconds], label=name)
            offered = [tier.timeline[second][0] / run.runs for second in seconds]
            row[0].plot(seconds, offered, color=line.get_color(), linestyle=":", linewidth=0.8)
        row[0].set_title(f"{run.arm} at {run.load:g}x: good (lines) and offered (dots) per s", fontsize=9)
        row[1].plot([at for at, _, _ in run.gauges], [queued for _, queued, _ in run.gauges], label="queued")
        row[1].plot([at for at, _, _ in run.gauges], [running for _, _, running in run.gauges], label="in flight")
        row[1].set_title("requests in the gateway's queue and at workers", fontsize=9)
        for axis in row:
            axis.grid(alpha=0.3)
            for moment in scenario.spike or ():
                axis.axvline(moment, color="grey", linewidth=0.8)
    axes[0][0].legend(fontsize=8)
    axes[0][1].legend(fontsize=8)
    path = folder / f"{scenario.name}.png"
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)
    return path
