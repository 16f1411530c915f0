"""Builds the alerts on what a gateway leans on: the record and its database, the shared store, the workers' own valves.

None of them counts requests: a spool that fills has harmed nobody yet, and that is when it should be told.
"""

from service.slo.objective import Severity
from service.slo.rules import Rule, RuleGroup
from service.slo.window import MINUTE_S

RUNBOOKS = "slo/runbooks"
SPOOL_ALERT = "SluiceSpoolFilling"
LOST_ALERT = "SluiceRecordLost"
DATABASE_ALERT = "SluiceDatabaseAway"
STORE_ALERT = "SluiceStoreAway"
VALVE_ALERT = "SluiceWorkerRefuses"
PART_ALERTS = (SPOOL_ALERT, LOST_ALERT, DATABASE_ALERT, STORE_ALERT, VALVE_ALERT)

SPOOL_TICKET_RATIO, SPOOL_PAGE_RATIO = 0.5, 0.8
"""Of the room on the disk: guesses. A database that is away for a day should be known before half the room is taken."""

VALVE_MIN = 5
"""Refusals by workers in a quarter of an hour: one or two are a race with a restart, and were tried again."""

RECORD, STORE, WORKERS = "record", "store", "workers"
"""Their ``slo`` label: without one Alertmanager would take a page on one part to stand for tickets on all others."""

_INTERVAL_S = 15


def build_part_alerts(divisor: int = 1) -> RuleGroup:
    """The alerts on parts; with a ``divisor`` all waits are as much shorter, for drills."""
    minute_s = MINUTE_S / divisor
    rules = (
        *(
            _build(SPOOL_ALERT, build_spool_condition(ratio), severity, RECORD, 0, text, said)
            for severity, ratio, text, said in (
                (
                    Severity.TICKET, SPOOL_TICKET_RATIO, "The spool of the ledger fills",
                    "{{ $value | humanizePercentage }} of its room on {{ $labels.instance }} is taken.",
                ),
                (
                    Severity.PAGE, SPOOL_PAGE_RATIO, "The spool of the ledger is nearly full: then entries are lost",
                    "{{ $value | humanizePercentage }} of its room on {{ $labels.instance }} is taken.",
                ),
            )
        ),
        _build(
            LOST_ALERT, "increase(sluice_ledger_lost_total[15m]) > 0", Severity.PAGE, RECORD, 0,
            "Requests are missing from the ledger, as no more than a number",
            "About {{ $value | humanize }} on {{ $labels.instance }} in 15 minutes found no room on disk or in memory.",
        ),
        _build(
            DATABASE_ALERT, "sluice_ledger_database_away > 0", Severity.TICKET, RECORD, max(1, round(10 * minute_s)),
            "The database of the ledger cannot be written",
            "Entries of {{ $labels.instance }} wait in its spool; nothing is lost while that has room.",
        ),
        _build(
            STORE_ALERT, "sluice_store_away > 0", Severity.TICKET, STORE, max(1, round(2 * minute_s)),
            "The shared store does not answer: quotas go on from equal shares",
            "{{ $labels.instance }} may let its share of each limit pass, and takes no changes of keys and contracts.",
        ),
        _build(
            VALVE_ALERT, build_valve_condition(VALVE_MIN), Severity.TICKET, WORKERS, 0,
            "Workers refuse what gateways took them to have room for",
            "{{ $value | humanize }} attempts in 15 minutes: who else sends to these workers?",
        ),
    )  # fmt: skip
    return RuleGroup("sluice-parts", max(1, _INTERVAL_S // divisor), rules)


def build_spool_condition(ratio: float) -> str:
    """More than ``ratio`` of the room of one gateway's spool is taken."""
    return f"sluice_ledger_spool_bytes / (sluice_ledger_spool_max_bytes > 0) > {ratio:g}"


def build_valve_condition(least: int) -> str:
    """Workers have answered at least so many attempts of all gateways with 429 or 503."""
    return f'sum(increase(sluice_attempt_failures_total{{cause="busy"}}[15m])) >= {least}'


def _build(name: str, expr: str, severity: Severity, part: str, for_s: int, summary: str, description: str) -> Rule:
    return Rule(
        name, expr, alert=True, for_s=for_s, labels={"severity": severity.value, "slo": part},
        annotations={"summary": summary, "description": description, "runbook": f"{RUNBOOKS}/{name}.md"},
    )  # fmt: skip
