"""Fills a ledger with a month of requests and measures what a report over it takes.

    python -m loadtests.live.ledger_month fill --database var/month.db --requests 10000000
    python -m loadtests.live.ledger_month measure --database var/month.db
    python -m loadtests.live.ledger_month picture --database var/month.db

``fill`` goes through the clerk's own code (rollups, chain, one transaction per batch) and goes on where it was stopped;
``--limit-s`` stops it after so many seconds. ``measure`` runs ``sluice report`` in a process of its own, watches its
memory, and counts one tenant by brute force to compare. Figures go to ``loadtests/reports/ledger_month.json``.
"""

import argparse
import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from service.domain.outcome import Outcome
from service.domain.tier import Tier
from service.domain.units import RequestId, TenantId, TierName, WorkerId
from service.ledger.book import Book
from service.ledger.database import open_database
from service.ledger.entry import FIRST_HASH, Terms, build_row, chain_hash, encode_payload
from service.ledger.segment import Head, Line
from service.runtime.account import Settlement
from service.slo.verdict import judge

REPORT = Path(__file__).parents[1] / "reports" / "ledger_month.json"
MONTH = "2026-11"
MONTH_S, DAYS = 1793491200.0, 30
CHAIN = "0123456789abcdef"
TENANTS = 40
_BATCH = 20_000
_SECONDS_MAX, _MIB_MAX = 90.0, 500.0
TIERS = {
    "priority": Tier(
        TierName("priority"), 0, availability=0.999, attainment=0.99, tpot_target_s=0.025,
        ttft_targets_s=((4096, 1.0), (32768, 3.0), (131072, 12.0), (1048576, 60.0)),
    ),
    "default": Tier(
        TierName("default"), 1, availability=0.995, attainment=0.99, tpot_target_s=0.05,
        ttft_targets_s=((4096, 2.5), (32768, 6.0), (131072, 25.0), (1048576, 120.0)),
    ),
    "flex": Tier(TierName("flex"), 2, best_effort=True),
}  # fmt: skip
_ENDINGS = (
    [Outcome.COMPLETED] * 985
    + [Outcome.CLIENT_GONE] * 8
    + [Outcome.MALFORMED] * 3
    + [Outcome.EXPIRED] * 3
    + [Outcome.WORKER_FAILED]
)


@dataclass
class _Source:
    """Requests of a month, the same for the same number."""

    total: int

    def __post_init__(self) -> None:
        self.terms = Terms("MiniMax-M3.1-Flash", "0f0f0f0f0f0f0f0f", TIERS, {})

    def build(self, number: int, chance: random.Random) -> tuple[Any, ...]:
        """The entry of one request; they come in the order of their arrival."""
        at_s = MONTH_S + number / self.total * DAYS * 86400.0
        one = Settlement(RequestId(f"m-{number}"), "chat_completions", at_s)
        tenant = int(chance.paretovariate(0.7)) % TENANTS
        tier = ("priority", "default", "flex")[tenant % 3]
        one.tenant_id, one.tier, one.stream = TenantId(f"tenant-{tenant:02}"), TierName(tier), True
        one.outcome = _ENDINGS[int(chance.random() * len(_ENDINGS))]
        one.prompt_tokens = min(int(chance.lognormvariate(7.0, 1.4)) + 1, 1_000_000)
        one.prompt_bytes = 4 * one.prompt_tokens
        one.admitted_at = at_s + 0.0003
        one.settled_at = at_s + 0.01
        if one.outcome in (Outcome.COMPLETED, Outcome.CLIENT_GONE):
            one.output_tokens = int(chance.lognormvariate(5.0, 0.8)) + 1
            one.status, one.worker_id, one.attempts = 200, WorkerId(f"w-{number % 8}"), 1
            one.dispatched_at = at_s + 0.001
            one.first_token_at = at_s + chance.lognormvariate(-1.6, 0.6) + one.prompt_tokens / 40_000.0
            one.last_token_at = one.first_token_at + one.output_tokens * chance.lognormvariate(-4.5, 0.2)
            one.settled_at = one.last_token_at
        one.verdict = judge(one, TIERS[tier])
        return build_row(one, self.terms, 0.0)


def fill(path: Path, total: int, limit_s: float) -> int:
    """Add what is missing; how many entries there are afterwards."""
    engine = open_database(f"sqlite:///{path}")
    book = Book(engine)
    book.prepare()
    book.note_terms("0f0f0f0f0f0f0f0f", _describe_terms(), int(MONTH_S * 1e6))
    head = book.find_head(CHAIN)
    if head is None:
        head = Head(CHAIN, 0, FIRST_HASH)
        book.begin_chain(head, int(MONTH_S * 1e6))
    source, stop_at = _Source(total), time.monotonic() + limit_s
    seq, digest = head.seq, head.digest
    columns = (TextColumn("filling"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("filling", total=total, completed=seq)
        while seq < total and time.monotonic() < stop_at:
            chance = random.Random(seq)  # noqa: S311 - a plan of requests, guards nothing
            lines = []
            for number in range(seq, min(seq + _BATCH, total)):
                row = source.build(number, chance)
                digest = chain_hash(digest, encode_payload(number + 1, row))
                lines.append(Line(number + 1, digest, row))
            book.take(CHAIN, lines, int(MONTH_S * 1e6))
            seq += len(lines)
            bar.update(task, completed=seq)
    engine.dispose()
    return seq


def _describe_terms() -> str:
    tiers = {
        name: {
            "availability": tier.availability, "attainment": tier.attainment, "tpot_s": tier.tpot_target_s,
            "ttft": {str(edge): target_s for edge, target_s in tier.ttft_targets_s},
        }
        for name, tier in TIERS.items()
    }  # fmt: skip
    ladder = {"credits": [[0.999, 0.1], [0.99, 0.25], [0.95, 1.0]]}
    return json.dumps({"tiers": tiers, "tenants": {f"tenant-{number:02}": ladder for number in range(TENANTS)}})


def measure(path: Path, verify: bool) -> dict[str, Any]:
    """What a report takes, and whether it is right."""
    figures: dict[str, Any] = {}
    outputs: dict[str, bytes] = {}
    for form, options in (("json", ()), ("html", ()), *((("text", ("--verify",)),) if verify else ())):
        argv = [sys.executable, "-m", "service", "report", "--month", MONTH, "--ledger", f"sqlite:///{path}"]
        began_at = time.monotonic()
        process = subprocess.Popen([*argv, "--format", form, *options], stdout=subprocess.PIPE)  # noqa: S603
        assert process.stdout is not None  # noqa: S101 - asked for a line above
        outputs[form] = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        figures["verify" if options else form] = {
            "took_s": round(time.monotonic() - began_at, 1), "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
            "peak_mib": round(usage.ru_maxrss / 1024, 1), "exit_code": os.waitstatus_to_exitcode(status),
        }  # fmt: skip
    told = json.loads(outputs["json"])
    figures["entries"] = told["evidence"]["entries"]
    figures["faults"] = _compare(path, told)
    for form in ("json", "html"):
        if figures[form]["took_s"] > _SECONDS_MAX or figures[form]["peak_mib"] > _MIB_MAX:
            figures["faults"].append(f"{form}: more than {_SECONDS_MAX:.0f} s or {_MIB_MAX:.0f} MiB")
    return figures


def _compare(path: Path, told: dict[str, Any]) -> list[str]:
    """One tenant's figures by plain SQL over its entries, beside the report's."""
    faults = []
    account = min(told["accounts"], key=lambda one: (abs(one["requests"] - 100_000), one["tenant"]))
    with sqlite3.connect(path) as database:
        rows = database.execute(
            "select standing, slis, first_token_us, arrived_us / 300000000 from entries_2026_11 "
            "where tenant = ? and tier = ?",
            (account["tenant"], account["tier"]),
        ).fetchall()
    counts = {name: sum(row[0] == name for row in rows) for name in ("met", "missed", "excluded")}
    faults += [f"{name}: {account[name]} and {count}" for name, count in counts.items() if account[name] != count]
    for place, sli in enumerate(("availability", "ttft", "tpot", "all")):
        for letter, word in (("g", "good"), ("b", "bad")):
            count = sum(row[1][place] == letter for row in rows)
            if account["slis"][sli][word] != count:
                faults.append(f"{sli} {word}: {account['slis'][sli][word]} and {count}")
    objective = account["slis"]["availability"]["objective"]
    if objective is not None:
        intervals: dict[int, list[int]] = {}
        for _, slis, _, interval in rows:
            if slis[0] in "gb":
                intervals.setdefault(interval, [0, 0])[slis[0] == "b"] += 1
        down = sum(bad > (1.0 - objective) * (good + bad) for good, bad in intervals.values())
        if down != account["down_intervals"]:
            faults.append(f"bad intervals: {account['down_intervals']} and {down}")
    print(f"checked by brute force: {account['tenant']}, {len(rows)} entries, {len(faults)} differences")
    return faults


def take_picture(path: Path) -> None:
    """The page of one tenant as a browser shows it, beside the report; needs Chromium."""
    page, picture = path.with_suffix(".html").resolve(), REPORT.with_suffix(".png").resolve()
    argv = [sys.executable, "-m", "service", "report", "--month", MONTH, "--ledger", f"sqlite:///{path}"]
    subprocess.run([*argv, "--tenant", "tenant-03", "--format", "html", "-o", page], check=True)  # noqa: S603
    shoot = ["chromium", "--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1000,1500"]
    subprocess.run([*shoot, f"--screenshot={picture}", page.as_uri()], check=True)  # noqa: S603
    print(f"written: {picture}")


def main() -> int:
    """Fill, measure, or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fill", "measure", "picture"))
    parser.add_argument("--database", type=Path, default=Path("var/month.db"))
    parser.add_argument("--requests", type=int, default=10_000_000)
    parser.add_argument("--limit-s", type=float, default=1e9)
    parser.add_argument("--verify", action="store_true", help="measure the verification of the whole chain too")
    options = parser.parse_args()
    if options.what == "fill":
        began_at = time.monotonic()
        print(f"{fill(options.database, options.requests, options.limit_s)} entries, "
              f"{time.monotonic() - began_at:.0f} s, {options.database.stat().st_size / 2**20:.0f} MiB")  # fmt: skip
        return 0
    if options.what == "picture":
        take_picture(options.database)
        return 0
    figures = measure(options.database, options.verify)
    REPORT.write_text(json.dumps(figures, indent=2) + "\n")
    for name, value in figures.items():
        print(f"{name:<10}{value}")
    return 1 if figures["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
