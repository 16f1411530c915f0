"""Writes a report as one HTML page that needs nothing else: styles and plots stand in it."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from service.ledger.plots import draw_line, draw_stacks
from service.ledger.query import span_of
from service.ledger.render import describe_span, objective_of, percent, seconds, tell_evidence, tell_maintenance
from service.ledger.report import QUANTILES, Account, Report
from service.slo.attainment import SLIS

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c232b;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem;border-bottom:1px solid #d5dae0;padding-bottom:.2rem}
table{border-collapse:collapse;margin:.8rem 0;width:100%}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #e6e9ed}
td{white-space:nowrap}th:first-child,td:first-child{text-align:left;white-space:normal}th{font-weight:600}.bad{color:#b3261e;font-weight:600}.kept{color:#1d7a53}
figure{margin:1rem 0}figcaption{font-size:.85rem;color:#5a6572}svg{width:100%;height:auto}
svg text{font:11px system-ui,sans-serif;fill:#5a6572}.axis{stroke:#9aa4af;fill:none}
.evidence{font:12px/1.6 ui-monospace,monospace;overflow-wrap:anywhere}
@media(prefers-color-scheme:dark){body{background:#14181d;color:#e3e7ec}th,td,h2{border-color:#343c46}.bad{color:#ff8a80}
.kept{color:#6fd3a8}figcaption,svg text{color:#a8b2bd;fill:#a8b2bd}}
"""


def render_html(report: Report) -> str:
    """The page."""
    title = f"SLA report {report.month}" + ("" if report.tenant is None else f", {report.tenant}")
    parts = [
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>",
        f"<p>Calendar month in UTC, {escape(describe_span(report))}. A bad interval is five minutes in which a larger "
        "share of requests was bad than the contract allows; intervals without traffic are up. Refusals within the "
        "contract are bad; what the client caused, what is above the contract and announced maintenance is excluded, "
        "and listed.</p>",
        _summarise(report.accounts),
    ]
    days = (span_of(report.month)[1] - span_of(report.month)[0]) // 24
    for account in report.accounts:
        parts += _show_account(account, days)
    if report.maintenance:
        parts.append("<h2>Announced maintenance</h2><ul>")
        parts += [f"<li>{escape(line)}</li>" for line in tell_maintenance(report)]
        parts.append("</ul>")
    parts.append("<h2>Evidence</h2><div class=evidence>")
    parts += [f"<div>{escape(line)}</div>" for line in tell_evidence(report)]
    parts.append("</div></body></html>\n")
    return "".join(parts)


def _summarise(accounts: Sequence[Account]) -> str:
    if not accounts:
        return "<p>No request was recorded.</p>"
    rows = []
    for account in accounts:
        total = account.total
        attained = [_attained(account, sli) for sli in SLIS]
        uptime = "-" if account.uptime is None else percent(account.uptime)
        credit = "-" if account.promise.availability is None else percent(account.credit)
        rows.append([_name(account), f"{total.requests:,}", *attained, uptime, credit])
    return _table(("tenant, tier", "requests", *SLIS, "uptime", "credit"), rows)


def _name(account: Account) -> str:
    return escape(f"{account.tenant or '(nobody known)'}, {account.tier or '(no tier)'}")


def _attained(account: Account, sli: str) -> str:
    attained, objective = account.total.attained(sli), objective_of(account, sli)
    if attained is None:
        return "-"
    told = percent(attained)
    if objective is None:
        return told
    return f"<span class={'kept' if attained >= objective else 'bad'}>{told}</span>"


def _show_account(account: Account, days: int) -> Iterator[str]:
    total, promise = account.total, account.promise
    standings = total.standings
    yield f"<h2>{_name(account)}</h2>"
    yield (
        f"<p>{total.requests:,} requests: {standings['met']:,} met, {standings['missed']:,} missed, "
        f"{standings['excluded']:,} excluded{f', {total.lost:,} lost' if total.lost else ''}. Tokens by usage: "
        f"{total.prompt_tokens:,} prompt, {total.cached_tokens:,} of them cached, {total.output_tokens:,} output.</p>"
    )
    if account.budget_left is not None and account.down_intervals is not None:
        yield (
            f"<p>Promised {percent(promise.availability or 0.0)}; error budget left {percent(account.budget_left)}; "
            f"{account.down_intervals} bad intervals; credit {percent(account.credit)} of the month's bill.</p>"
        )
    yield _table(
        ("counted as", "good", "bad", "attained", "promised"),
        [
            [sli, f"{total.good[place]:,}", f"{total.bad[place]:,}", _attained(account, sli), _promised(account, sli)]
            for place, sli in enumerate(SLIS)
        ],
    )
    yield _show_classes(account)
    yield from _draw(account, days)
    if total.reasons:
        yield _table(
            ("reason", "standing", "requests"),
            [[escape(reason), standing, f"{n:,}"] for (standing, reason), n in sorted(total.reasons.items())],
        )


def _promised(account: Account, sli: str) -> str:
    objective = objective_of(account, sli)
    return "-" if objective is None else percent(objective)


def _show_classes(account: Account) -> str:
    names = [f"p{100 * ratio:g}" for ratio in QUANTILES]
    rows = []
    for one in account.classes:
        name = f"to {one.edge:,} tokens" if one.edge else "no class"
        for what, target_s, quantiles in (
            ("TTFT", account.promise.ttft_s.get(one.edge), one.ttft_s),
            ("TPOT", account.promise.tpot_s, one.tpot_s),
        ):
            if quantiles[0] is not None:
                good, bad = one.ttft if what == "TTFT" else one.tpot
                within = percent(good / (good + bad)) if good + bad else "-"
                rows.append([f"{what}, prompts {name}", seconds(target_s), within, *map(seconds, quantiles)])
    return _table(("length", "target", "within", *names), rows) if rows else ""


def _draw(account: Account, days: int) -> Iterator[str]:
    stacks = [
        (day.number, (("met", day.met), ("missed", day.missed), ("excluded", day.excluded))) for day in account.days
    ]
    yield draw_stacks("Requests a day: met (green), missed (red), excluded (grey)", days, stacks)
    available = [
        (float(day.number), 100.0 * day.available[0] / sum(day.available)) for day in account.days if sum(day.available)
    ]
    objective = account.promise.availability
    if available and objective is not None:
        lowest = min(100.0 * objective - (100.0 - 100.0 * objective), *(value for _, value in available))
        yield draw_line("Availability a day", days, available, 100.0 * objective, lowest, 100.0, " %")
    late = [(float(day.number), day.ttft_p99_s) for day in account.days if day.ttft_p99_s is not None]
    if late:
        highest = 1.1 * max(value for _, value in late)
        yield draw_line("99th percentile of the first token a day", days, late, None, 0.0, highest, " s")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table>"
