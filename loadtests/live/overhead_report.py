"""Turns the samples of an overhead run into rows, a Markdown page and a picture.

One sample is one load on one gateway in one round. A row holds the medians over the rounds. Ratios are to vllm-router
*in the same run*: CPU times of two runs or two machines do not compare.
"""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtests.live.figures import (
    DASH,
    compute_difference,
    compute_median,
    compute_ratio,
    format_figure,
    format_markdown,
)
from loadtests.live.peers import DIRECT, REFERENCE, SLUICE, SLUICE_COMPILED

JSON_LOAD, STREAM_LOAD, JSON_SINGLE, STREAM_SINGLE = "json", "stream", "json-single", "stream-single"

BUSY_LIMIT_RATIO = 0.9  # a client that takes more of its core than this may be what limits the rate
LAG_LIMIT_MS = 25.0  # guess: a client woken later than this has been pushed aside by other work on the machine

INVALID = "invalid"
HEADINGS = (
    "gateway",
    "version",
    "us/request",
    "us/chunk",
    "x vllm-router",
    "rps",
    "json +ms",
    "stream +ms",
    "RSS MiB",
    "errors",
)


@dataclass(frozen=True)
class Sample:
    """One load on one gateway in one round: the client's result as it printed it."""

    peer: str
    round: int
    step: str
    result: Mapping[str, object]


@dataclass(frozen=True)
class Row:
    """Medians of one gateway over the rounds; what was not measured is None."""

    peer: str
    version: str
    us_per_request: float | None
    us_per_chunk: float | None
    ratio_request: float | None
    ratio_chunk: float | None
    rps: float | None
    added_ttfb_json_ms: float | None
    added_total_json_ms: float | None
    added_ttfb_stream_ms: float | None
    added_total_stream_ms: float | None
    rss_peak_mib: float | None
    errors: int


def read_figure(result: Mapping[str, object], *path: str) -> float | None:
    """A figure in a result by its path; None where it is missing."""
    value: object = result
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return float(value) if isinstance(value, int | float) else None


def compute_peer_median(samples: Sequence[Sample], peer: str, step: str, *path: str) -> float | None:
    """Median over the rounds of one figure of one gateway under one load."""
    return compute_median([read_figure(s.result, *path) for s in samples if s.peer == peer and s.step == step])


def count_errors(samples: Sequence[Sample], peer: str) -> int:
    """Failed requests of one gateway over all loads and rounds."""
    total = 0
    for sample in samples:
        errors = sample.result.get("errors")
        if sample.peer == peer and isinstance(errors, Mapping):
            total += sum(errors.values())
    return total


def build_rows(samples: Sequence[Sample], versions: Mapping[str, str]) -> list[Row]:
    """One row per gateway that was measured, in the order of ``versions``."""

    def figure(peer: str, step: str, *path: str) -> float | None:
        return compute_peer_median(samples, peer, step, *path)

    def added(peer: str, step: str, spread: str) -> float | None:
        return compute_difference(figure(peer, step, spread, "p50"), figure(DIRECT, step, spread, "p50"))

    rows = []
    for peer, version in versions.items():
        if not any(sample.peer == peer for sample in samples):
            continue
        request, chunk = (
            figure(peer, JSON_LOAD, "cpu_us_per_request"),
            figure(peer, STREAM_LOAD, "cpu_us_per_chunk"),
        )
        is_gateway = peer != DIRECT
        rss_kib = compute_median(
            [read_figure(s.result, "rss_peak_kib") for s in samples if s.peer == peer and s.step == STREAM_LOAD]
        )
        rows.append(
            Row(
                peer=peer,
                version=version,
                us_per_request=request,
                us_per_chunk=chunk,
                ratio_request=compute_ratio(request, figure(REFERENCE, JSON_LOAD, "cpu_us_per_request"))
                if is_gateway
                else None,
                ratio_chunk=compute_ratio(chunk, figure(REFERENCE, STREAM_LOAD, "cpu_us_per_chunk"))
                if is_gateway
                else None,
                rps=figure(peer, JSON_LOAD, "rps"),
                added_ttfb_json_ms=added(peer, JSON_SINGLE, "ttfb_ms") if is_gateway else None,
                added_total_json_ms=added(peer, JSON_SINGLE, "e2e_ms") if is_gateway else None,
                added_ttfb_stream_ms=added(peer, STREAM_SINGLE, "ttfb_ms") if is_gateway else None,
                added_total_stream_ms=added(peer, STREAM_SINGLE, "e2e_ms") if is_gateway else None,
                rss_peak_mib=None if rss_kib is None else rss_kib / 1024,
                errors=count_errors(samples, peer),
            )
        )
    return rows


def format_verdict(row: Row) -> str:
    """Ratios to vllm-router, request and chunk; ``invalid`` where requests failed, because refusing is cheap."""
    if row.errors:
        return INVALID
    return format_pair(row.ratio_request, row.ratio_chunk)


def format_pair(first: float | None, second: float | None) -> str:
    """Two figures that belong together; one dash where neither is known."""
    if first is None and second is None:
        return DASH
    return f"{format_figure(first, 2)} / {format_figure(second, 2)}"


def format_cells(row: Row) -> tuple[str, ...]:
    """The row as text, in the order of ``HEADINGS``."""
    return (
        row.peer,
        row.version,
        format_figure(row.us_per_request),
        format_figure(row.us_per_chunk, 2),
        format_verdict(row),
        format_figure(row.rps, 0),
        format_pair(row.added_ttfb_json_ms, row.added_total_json_ms),
        format_pair(row.added_ttfb_stream_ms, row.added_total_stream_ms),
        format_figure(row.rss_peak_mib, 0),
        str(row.errors),
    )


def build_warnings(samples: Sequence[Sample]) -> list[str]:
    """What makes figures of this run doubtful: a client at its limit, a machine busy with other work, failures."""
    warnings = []
    for sample in samples:
        place = f"{sample.peer}, {sample.step}, round {sample.round}"
        busy, lag = (
            read_figure(sample.result, "client", "busy_ratio"),
            read_figure(sample.result, "client", "lag_ms", "p99"),
        )
        if busy is not None and busy > BUSY_LIMIT_RATIO and sample.peer != DIRECT:
            warnings.append(f"{place}: the client used {busy:.2f} of its core; the rate may be the client's")
        if lag is not None and lag > LAG_LIMIT_MS:
            warnings.append(f"{place}: the client was woken {lag:.0f} ms late (p99); latency is not to be trusted")
        if sample.result.get("errors"):
            warnings.append(f"{place}: failed requests {sample.result['errors']}")
    return warnings


def describe_machine() -> dict[str, object]:
    """The machine without its name: processor, cores, memory, kernel, Python."""
    processor = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "memory_gib": round(pages * page_bytes / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def format_page(
    rows: Sequence[Row],
    *,
    command: str,
    rounds: int,
    machine: Mapping[str, object],
    skipped: Mapping[str, str],
    warnings: Sequence[str],
) -> str:
    """The Markdown page of a run."""
    parts = [
        "# Gateway overhead",
        "",
        f"Medians of {rounds} round(s), peers in turn on one machine in one run. CPU time is user + system of the "
        "gateway's processes. *us/request*: 16 connections, whole answers of 16 tokens. *us/chunk*: 50 streams of 100 "
        "chunks, one per 5 ms, the requests' own cost included. *x vllm-router*: the two as ratios to vllm-router's. "
        "*+ms*: time to first byte / in total, p50 of sequential requests on one connection, minus the same without a "
        "gateway. *direct* is the worker itself, without a gateway: its own cost, and the rate that the client can "
        "reach at most.",
        "",
        format_markdown(HEADINGS, [format_cells(row) for row in rows]),
        "",
        f"Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux "
        f"{machine['kernel']}, Python {machine['python']}, load average at the start {machine['load_average']}.",
        "",
        f"Command: `{command}`",
    ]
    if skipped:
        parts += ["", "Not measured:", "", *(f"* {peer}: {reason}" for peer, reason in skipped.items())]
    if warnings:
        parts += ["", "Doubts about this run:", "", *(f"* {text}" for text in warnings)]
    return "\n".join(parts) + "\n"


def draw_picture(rows: Sequence[Row], path: Path) -> None:
    """Bars of CPU time per request, per chunk and of the added latency, one line per gateway."""
    import matplotlib as mpl  # an optional dependency, wanted only here

    mpl.use("Agg")
    from matplotlib import pyplot

    gateways = [row for row in rows if row.peer != DIRECT][::-1]
    panels = (
        ("CPU per request (us)", [row.us_per_request for row in gateways]),
        ("CPU per streamed chunk (us)", [row.us_per_chunk for row in gateways]),
        ("added time to first byte, one stream (ms)", [row.added_ttfb_stream_ms for row in gateways]),
    )
    figure, axes = pyplot.subplots(1, len(panels), figsize=(13, 1.2 + 0.5 * max(len(gateways), 2)), sharey=True)
    names = [f"{row.peer} {row.version}" for row in gateways]
    colours = ["#c2410c" if row.peer in (SLUICE, SLUICE_COMPILED) else "#64748b" for row in gateways]
    for axis, (title, values) in zip(axes, panels, strict=True):
        bars = axis.barh(names, [value or 0.0 for value in values], color=colours)
        axis.bar_label(bars, labels=[format_figure(value, 2 if "ms" in title else 1) for value in values], padding=3)
        axis.set_title(title, fontsize=10)
        axis.margins(x=0.18)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Gateway overhead: lower is better", fontsize=12)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
