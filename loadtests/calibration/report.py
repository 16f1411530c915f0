"""Shows what a calibration found: a table, a page, JSON for programs, a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.table import Table

from loadtests.calibration.fit import COST_FIELDS, FIELDS, Fit, read_parameters
from loadtests.calibration.verdict import Errors, Judged, Verdict, compute_errors
from loadtests.live.figures import DASH, format_markdown
from service.emulator.profiles import EngineProfile

HEADINGS = (
    "held-out run", "load", "requests", "E2E p50 ms", "predicted", "error p50", "p90", "TTFT error p50",
    "TPOT error p50",
)  # fmt: skip
_UNITS = {
    "base_s": (1e3, "ms", "each step"),
    "per_token_s": (1e6, "us", "and each decoding request in it"),
    "per_mega_kv_s": (1e3, "ms", "and each million tokens held in the KV cache"),
    "per_prefill_token_s": (1e6, "us", "and each prompt token computed in it"),
    "per_prefill_context_s": (1e9, "ns", "and each of those times its position"),
    "latency_s": (1e3, "ms", "before a request is known to the engine"),
    "per_request_s": (1e3, "ms", "of the HTTP process for itself, each request"),
    "per_prompt_token_s": (1e6, "us", "and each prompt token, cached or not"),
    "stall_ratio": (1.0, "s", "a running engine loses for each second of that"),
}


@dataclass(frozen=True, slots=True)
class Story:
    """Everything a report tells."""

    command: str
    machine: Mapping[str, object]
    engine: Mapping[str, object]
    profile: EngineProfile
    fit: Fit | None
    sweep_requests: int
    runs: Sequence[Judged]
    verdict: Verdict
    capacities_rps: Mapping[str, float]
    disturbed: Sequence[str]
    repeated: int


def format_percent(ratio: float) -> str:
    """A ratio in percent; a dash where there is none."""
    return DASH if math.isnan(ratio) else f"{100 * ratio:.1f} %"


def build_rows(story: Story) -> list[list[str]]:
    """A line per held-out run, all of them together last."""
    rows = [_build_row(run.name, f"{run.utilisation:g}", [run]) for run in story.runs]
    return [*rows, _build_row("all", "", story.runs)]


def _build_row(name: str, load: str, runs: Sequence[Judged]) -> list[str]:
    e2e, ttft, tpot = compute_errors(runs)
    measured = sorted(one.e2e_s for run in runs for one in run.measured)
    predicted = sorted(one.e2e_s for run in runs for one in run.predicted)
    middle = (len(measured) - 1) // 2
    return [
        name, load, str(e2e.count), f"{1e3 * measured[middle]:.0f}", f"{1e3 * predicted[middle]:.0f}",
        format_percent(e2e.median), format_percent(e2e.p90), format_percent(ttft.median), format_percent(tpot.median),
    ]  # fmt: skip


def build_table(story: Story) -> Table:
    """For the terminal."""
    table = Table(title="predicted against measured", title_justify="left", title_style="bold")
    for index, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if index == 0 else "right")
    for row in build_rows(story):
        table.add_row(*row)
    return table


def format_verdict(verdict: Verdict) -> str:
    """One sentence."""
    word = "honest" if verdict.is_honest else "NOT honest"
    return (
        f"{word}: the median error of the end-to-end time over {verdict.e2e.count} held-out requests is "
        f"{format_percent(verdict.e2e.median)} (limit {format_percent(verdict.limit)}; p90 "
        f"{format_percent(verdict.e2e.p90)}); TTFT {format_percent(verdict.ttft.median)}, TPOT "
        f"{format_percent(verdict.tpot.median)}" + "".join(f"; failed: {text}" for text in verdict.failed)
    )


def build_parameter_rows(story: Story) -> list[list[str]]:
    """What a step costs by this profile, and by the first guess where there was a fit."""
    first = read_parameters(story.fit.first_guess) if story.fit is not None else [None] * len(FIELDS)
    rows: list[list[str]] = []
    for name, value, before in zip(FIELDS, read_parameters(story.profile), first, strict=True):
        scale, unit, meaning = _UNITS[name]
        part = "cost" if name in COST_FIELDS else "frontend"
        guess = DASH if before is None else f"{before * scale:.3g} {unit}"
        rows.append([f"{part}.{name}", meaning, guess, f"{value * scale:.3g} {unit}"])
    return rows


def build_record(story: Story) -> dict[str, object]:
    """For programs."""
    fit = story.fit
    return {
        "command": story.command,
        "honest": story.verdict.is_honest,
        "limit": story.verdict.limit,
        "errors": _record_errors(story.verdict.e2e, story.verdict.ttft, story.verdict.tpot),
        "machine": dict(story.machine),
        "engine": dict(story.engine),
        "profile": asdict(story.profile),
        "fit": fit and {
            "first_guess": dict(zip(FIELDS, read_parameters(fit.first_guess), strict=True)),
            "sweep_requests": story.sweep_requests,
            "loss_of_first_guess": fit.loss_before,
            "loss": fit.loss,
        },
        "capacity_rps": dict(story.capacities_rps),
        "runs": [
            {
                "name": run.name,
                "utilisation": run.utilisation,
                "requests": len(run.measured),
                "errors": _record_errors(*compute_errors([run])),
                "prefix_hit_tokens": {"measured": run.hits_measured, "predicted": run.hits_predicted},
                "send_lag_max_s": round(run.send_lag_s, 4),
                "foreign_cores": None if run.foreign_cores is None else round(run.foreign_cores, 3),
            }
            for run in story.runs
        ],
        "failed": list(story.verdict.failed),
        "disturbed": list(story.disturbed),
        "repeated": story.repeated,
    }  # fmt: skip


def _record_errors(e2e: Errors, ttft: Errors, tpot: Errors) -> dict[str, object]:
    return {
        name: {key: None if math.isnan(value) else round(value, 4) for key, value in asdict(errors).items()}
        for name, errors in (("e2e", e2e), ("ttft", ttft), ("tpot", tpot))
    }


def format_page(story: Story) -> str:
    """The Markdown page."""
    machine, engine = story.machine, story.engine
    fitted = (
        f"The model was fitted to {story.sweep_requests} requests of a sweep (batch x prompt x prefix reuse) and knows "
        "nothing of the runs below."
        if story.fit is not None
        else "The profile was given; nothing was fitted."
    )
    capacities = ", ".join(f"{name} {rps:.1f}/s" for name, rps in story.capacities_rps.items())
    parts = [
        "# Is the emulator honest?",
        "",
        f"`{story.command}`",
        "",
        f"**{format_verdict(story.verdict)}.**",
        "",
        f"Engine: vLLM {engine['version']}, {engine['about']}; at most {engine['max_num_seqs']} requests and "
        f"{engine['max_num_batched_tokens']} tokens in a step. Machine: {machine['processor']}, {machine['cores']} "
        f"cores, {machine['memory_gib']} GiB, kernel {machine['kernel']}; engine, HTTP process and client share it: "
        f"{engine['arrangement']}.",
        "",
        "Requests are streamed chats, sent open loop at Poisson moments; every length counts from when a request was "
        f"meant to be sent. {fitted} Load is a part of the capacity that the model foretells ({capacities}). A "
        "prediction is one replay in the emulator's engine in virtual time, from what was sent and when; errors are "
        "|predicted - measured| / measured, request by request.",
        "",
        format_markdown(HEADINGS, build_rows(story)),
        "",
        "## What a step costs",
        "",
        format_markdown(("parameter", "meaning", "first guess", "fitted"), build_parameter_rows(story)),
        "",
        f"Noise of a step: {100 * story.profile.cost.noise_cv:.0f} % (from the gaps of streams that were alone).",
        "",
        "## What to keep in mind",
        "",
        *(f"* {line}" for line in _list_remarks(story)),
    ]
    return "\n".join(parts) + "\n"


def _list_remarks(story: Story) -> list[str]:
    hits = [
        f"{run.name}: {run.hits_measured:.0f} measured, {run.hits_predicted} predicted"
        for run in story.runs
        if run.hits_measured or run.hits_predicted
    ]
    remarks = [
        "This is one small machine and a small model with random weights. What carries over to a GPU is the shape of "
        "the emulator's model and the way it is calibrated, not the figures.",
        f"The client sent at most {1e3 * max(run.send_lag_s for run in story.runs):.0f} ms late.",
    ]
    if hits:
        remarks.append("Prompt tokens found in the prefix cache: " + "; ".join(hits) + ".")
    if story.repeated:
        remarks.append(f"{story.repeated} runs were measured again because others used the processors meanwhile.")
    if story.disturbed:
        remarks.append(f"Disturbed all the same (cores used by others): {'; '.join(story.disturbed)}.")
    return remarks


def draw_picture(story: Story, path: Path) -> None:
    """Predicted over measured, every held-out request a point; and how errors are distributed."""
    import matplotlib as mpl  # an optional dependency, wanted only here

    mpl.use("Agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(1, 3, figsize=(15, 4.8))
    for axis, title, name in ((axes[0], "end to end (ms)", "e2e_s"), (axes[1], "first token (ms)", "ttft_s")):
        everything: list[float] = []
        for run in story.runs:
            measured = [1e3 * getattr(one, name) for one in run.measured]
            predicted = [1e3 * getattr(one, name) for one in run.predicted]
            everything += measured + predicted
            axis.plot(measured, predicted, ".", markersize=3, alpha=0.5, label=run.name)
        low, high = min(everything), max(everything)
        axis.plot([low, high], [low, high], color="black", linewidth=1)
        limit = 1.0 + story.verdict.limit
        axis.fill_between(
            [low, high], [low / limit, high / limit], [low * limit, high * limit], alpha=0.12, color="gray"
        )
        axis.set(xscale="log", yscale="log", xlabel="measured", ylabel="predicted", title=title)
        for scale in (axis.xaxis, axis.yaxis):
            scale.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            scale.set_major_formatter(ticker.FormatStrFormatter("%g"))
            scale.set_minor_formatter(ticker.NullFormatter())
    axes[0].legend(fontsize=7, markerscale=3)
    for label, name in (("end to end", "e2e_s"), ("first token", "ttft_s")):
        errors = sorted(
            100 * abs(getattr(said, name) / getattr(seen, name) - 1.0)
            for run in story.runs
            for said, seen in zip(run.predicted, run.measured, strict=True)
        )
        axes[2].plot(errors, [(index + 1) / len(errors) for index in range(len(errors))], label=label)
    axes[2].axvline(100 * story.verdict.limit, color="black", linewidth=1, linestyle="--")
    axes[2].set(
        xlim=(0, 60), ylim=(0, 1), xlabel="error (%)", ylabel="share of requests", title="errors of held-out runs"
    )
    axes[2].legend(fontsize=8)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def write_reports(story: Story, folder: Path) -> list[Path]:
    """JSON, page and picture."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"calibration.{suffix}" for suffix in ("json", "md", "png")]
    paths[0].write_text(json.dumps(build_record(story), indent=1) + "\n")
    paths[1].write_text(format_page(story))
    draw_picture(story, paths[2])
    return paths
