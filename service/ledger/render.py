"""Writes a report as text, JSON or CSV."""

import csv
import datetime
import io
import json
import math
from collections.abc import Iterator
from typing import Any

from service.ledger.report import QUANTILES, Account, Report, SizeClass
from service.slo.attainment import INTERVAL_S, SLIS
from service.slo.verdict import Standing


def render_text(report: Report) -> str:
    """For a terminal or a letter."""
    lines = [
        f"SLA report {report.month} (UTC){'' if report.tenant is None else f', tenant {report.tenant}'}",
        f"{describe_span(report)}; a bad interval is five minutes with more bad requests than the contract allows",
    ]
    for account in report.accounts:
        lines += ["", *_tell_account(account)]
    if not report.accounts:
        lines += ["", "no request was recorded"]
    if report.maintenance:
        lines += ["", "announced maintenance", *(f"  {line}" for line in tell_maintenance(report))]
    lines += ["", "evidence", *(f"  {line}" for line in tell_evidence(report))]
    return "\n".join(lines) + "\n"


def describe_span(report: Report) -> str:
    """How much of the month is in it."""
    return "the whole month" if report.over else f"the first {report.length_s / 86400:.2f} days; the month is not over"


def _tell_account(account: Account) -> Iterator[str]:
    total, promise = account.total, account.promise
    yield f"{account.tenant or '(nobody known)'}  tier {account.tier or '(none)'}"
    standings = total.standings
    yield (
        f"  requests {total.requests}: {standings['met']} met, {standings['missed']} missed, "
        f"{standings['excluded']} excluded{f'; {total.lost} lost' if total.lost else ''}"
    )
    for place, sli in enumerate(SLIS):
        good, bad = total.good[place], total.bad[place]
        if good + bad:
            objective = objective_of(account, sli)
            kept = "" if objective is None else f", promised {percent(objective)}"
            yield f"  {sli:<13}{percent(good / (good + bad)):>10} of {good + bad}: {bad} bad{kept}"
    if account.uptime is not None and account.budget_left is not None:
        yield (
            f"  uptime       {percent(account.uptime):>10}: {account.down_intervals} bad intervals of "
            f"{INTERVAL_S // 60} min; error budget left {percent(account.budget_left)}"
        )
        yield f"  credit       {percent(account.credit):>10} of the month's bill"
    for one in account.classes:
        yield from _tell_class(one, promise.ttft_s.get(one.edge), promise.tpot_s)
    for standing in (Standing.MISSED.value, Standing.EXCLUDED.value):
        told = [f"{reason} {count}" for (kind, reason), count in sorted(total.reasons.items()) if kind == standing]
        if told:
            yield f"  {standing}: {', '.join(told)}"
    if total.marks:
        yield f"  marked: {', '.join(f'{mark} {count}' for mark, count in sorted(total.marks.items()))}"
    yield (
        f"  tokens by usage: {total.prompt_tokens} prompt ({total.cached_tokens} cached), {total.output_tokens} output"
    )


def _tell_class(one: SizeClass, ttft_s: float | None, tpot_s: float | None) -> Iterator[str]:
    name = f"prompts to {one.edge} tokens" if one.edge else "prompts of no class"
    for what, counts, target_s, quantiles in (
        ("ttft", one.ttft, ttft_s, one.ttft_s),
        ("tpot", one.tpot, tpot_s, one.tpot_s),
    ):
        good, bad = counts
        if quantiles[0] is None:
            continue
        attained = f", {percent(good / (good + bad))} within {target_s:g} s" if target_s and good + bad else ""
        told = ", ".join(
            f"p{100 * ratio:g} {seconds(value)}" for ratio, value in zip(QUANTILES, quantiles, strict=True)
        )
        yield f"  {what} {name}: {told}{attained}"


def tell_maintenance(report: Report) -> Iterator[str]:
    """The windows that were announced, a line each."""
    for start, end, why in report.maintenance:
        yield f"{moment(start)} to {moment(end)}: {why}"


def tell_evidence(report: Report) -> Iterator[str]:
    """What the figures rest on, a line each."""
    evidence = report.evidence
    if evidence.entries is None:
        yield f"{evidence.counted} entries were added up; they are past their time and were dropped"
    else:
        same = "the same" if evidence.entries == evidence.counted else "NOT THE SAME"
        yield f"{evidence.entries} entries of the month, {evidence.counted} added up: {same}"
    for chain in evidence.chains:
        yield f"chain {chain.chain} up to entry {chain.seq}, hash {chain.digest.hex()}"
    for config_hash in evidence.terms:
        yield f"terms {config_hash}"
    for name, digest in evidence.sources.items():
        yield f"{name} {digest}"
    yield f"made {moment(report.made_at_s)}"


def objective_of(account: Account, sli: str) -> float | None:
    """What share was promised; nothing is of ``all``."""
    if sli == "availability":
        return account.promise.availability
    return None if sli == "all" else account.promise.attainment


def percent(ratio: float) -> str:
    """A share, never rounded up to what was promised: 99.9 % is not said of 99.8996 %."""
    return f"{math.floor(ratio * 100_000 + 1e-6) / 1000:.3f} %"


def seconds(value: float | None) -> str:
    """A length."""
    return "-" if value is None else f"{value:.3g} s"


def moment(at_s: float) -> str:
    """A moment of UTC."""
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).isoformat(timespec="seconds")


# ---------------------------------------------------------------- for programs


def describe(report: Report) -> dict[str, Any]:
    """The report as JSON has it."""
    evidence = report.evidence
    return {
        "month": report.month,
        "tenant": report.tenant,
        "over": report.over,
        "length_s": report.length_s,
        "made_at": moment(report.made_at_s),
        "maintenance": [
            {"from": moment(start), "to": moment(end), "reason": why} for start, end, why in report.maintenance
        ],
        "accounts": [_describe_account(account) for account in report.accounts],
        "evidence": {
            "entries": evidence.entries,
            "counted": evidence.counted,
            "chains": [
                {"chain": chain.chain, "seq": chain.seq, "hash": chain.digest.hex(), "dropped_seq": chain.dropped_seq}
                for chain in evidence.chains
            ],
            "terms": list(evidence.terms),
            "sources": dict(evidence.sources),
        },
    }


def _describe_account(account: Account) -> dict[str, Any]:
    total, promise = account.total, account.promise
    return {
        "tenant": account.tenant or None,
        "tier": account.tier or None,
        "requests": total.requests,
        "lost": total.lost,
        **{standing.value: total.standings[standing.value] for standing in Standing},
        "slis": {
            sli: {
                "good": total.good[place], "bad": total.bad[place], "attained": total.attained(sli),
                "objective": objective_of(account, sli),
            }
            for place, sli in enumerate(SLIS)
        },
        "uptime": account.uptime,
        "down_intervals": account.down_intervals,
        "budget_left": account.budget_left,
        "credit": account.credit,
        "ladder": [{"below": step.below, "credit": step.credit} for step in promise.ladder.steps],
        "classes": [
            {
                "edge_tokens": one.edge or None, "requests": one.requests,
                "ttft": _describe_length(one.ttft, one.ttft_s, promise.ttft_s.get(one.edge)),
                "tpot": _describe_length(one.tpot, one.tpot_s, promise.tpot_s),
            }
            for one in account.classes
        ],
        "reasons": [
            {"standing": standing, "reason": reason, "requests": count}
            for (standing, reason), count in sorted(total.reasons.items())
        ],
        "marks": dict(sorted(total.marks.items())),
        "tokens": {"prompt": total.prompt_tokens, "cached": total.cached_tokens, "output": total.output_tokens},
        "days": [
            {
                "day": day.number, "met": day.met, "missed": day.missed, "excluded": day.excluded,
                "good": day.available[0], "bad": day.available[1], "ttft_p99_s": day.ttft_p99_s,
            }
            for day in account.days
        ],
    }  # fmt: skip


def _describe_length(
    counts: tuple[int, int], quantiles: tuple[float | None, ...], target_s: float | None
) -> dict[str, Any]:
    named = {f"p{100 * ratio:g}_s": value for ratio, value in zip(QUANTILES, quantiles, strict=True)}
    return {"target_s": target_s, "good": counts[0], "bad": counts[1], **named}


def render_json(report: Report) -> str:
    """One object."""
    return json.dumps(describe(report), indent=2) + "\n"


_COLUMNS = (
    "month", "tenant", "tier", "requests", "met", "missed", "excluded", "lost", "availability",
    "availability_objective", "uptime", "down_intervals", "budget_left", "ttft", "tpot", "all",
    "attainment_objective", "credit", "prompt_tokens", "cached_tokens", "output_tokens",
)  # fmt: skip


def render_csv(report: Report) -> str:
    """A line for each tenant and tier. A name that a spreadsheet would take for a formula is quoted."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for account in report.accounts:
        total = account.total
        writer.writerow(
            [
                report.month, _plain(account.tenant), account.tier, total.requests,
                *(total.standings[standing.value] for standing in Standing), total.lost,
                total.attained("availability"), account.promise.availability, account.uptime, account.down_intervals,
                account.budget_left, total.attained("ttft"), total.attained("tpot"), total.attained("all"),
                account.promise.attainment, account.credit, total.prompt_tokens, total.cached_tokens,
                total.output_tokens,
            ]
        )  # fmt: skip
    return out.getvalue()


def _plain(name: str) -> str:
    return f"'{name}" if name[:1] in ("=", "+", "-", "@") else name
