"""``sluice replay``: does the core still decide as it did, and what would another policy have decided?"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.options import BAD_INPUT, FAILED, fail, say, tell_faults
from service.domain.errors import InvariantError
from service.runtime.fates import Fate
from service.runtime.journal import Journal, JournalError, encode_record, hash_config, read_journal
from service.runtime.replay import Difference, find_difference
from service.runtime.whatif import Comparison, compare
from service.settings.fault import SettingsRefusedError
from service.settings.policy import load_policy

_CHANGED_SHOWN = 20
_NOTE = (
    "What happened after a changed decision is not simulated: arrivals, workers and their figures are as recorded, and "
    "an attempt takes as long as it took, or as long as its tier's took on average. 'sluice simulate' does that."
)


def replay(
    journal: Annotated[Path, typer.Argument(metavar="JOURNAL", help="File that the setting logs.journal names.")],
    policy: Annotated[Path | None, typer.Option("--policy", help="YAML with other limits and tiers.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for a script.")] = False,
) -> None:
    """Play a journal again through this version's core: equal decisions are expected (exit code 1 if they are not).

    With --policy, say what would have been decided otherwise under other numbers; the file has the settings' own names:

        limits: {queued_requests_max: 200}
        tiers: {default: {ttft: {4000: 2.0}}}

    Example:  sluice replay /var/lib/sluice/journal.jsonl --policy tighter.yaml
    """
    played = _read(journal)
    try:
        if policy is None:
            _verify(played, as_json)
        else:
            change = load_policy(policy, played.header.config)
            _compare(played, compare(played, change, _told("compared")), as_json)
    except SettingsRefusedError as refused:
        tell_faults(policy or journal, refused)
    except InvariantError as error:
        fail(f"{journal} does not begin with the start of its gateway, or this version cannot follow it: {error}")


def _read(path: Path) -> Journal:
    try:
        with path.open("rb") as lines:
            journal = read_journal(lines, _told("read"))
    except OSError as error:
        fail(f"{path}: {error.strerror}", BAD_INPUT)
    except JournalError as error:
        fail(f"{path}: {error}", BAD_INPUT)
    if journal.dropped:
        say(f"{path}: {journal.dropped} events are missing after the first {len(journal.records)}; those are played")
    return Journal(journal.header, journal.records)


def _told(what: str) -> Any:  # noqa: ANN401 - a function of a number
    return lambda number: say(f"{what} {number} events")


# ---------------------------------------------------------------- the same again


def _verify(journal: Journal, as_json: bool) -> None:
    found = find_difference(journal, _told("played"))
    decisions = sum(len(commands) for _, _, commands in journal.records)
    if as_json:
        print(json.dumps({
            "events": len(journal.records), "commands": decisions, "config_hash": hash_config(journal.header.config),
            "equal": found is None, "difference": None if found is None else _describe(found),
        }))  # fmt: skip
    elif found is None:
        print(f"equal: {len(journal.records)} events, {decisions} commands, the same again")
    else:
        told = _describe(found)
        print(f"different from event {found.number} of {len(journal.records)} on, at {found.at:.6f}: {told['event']}")
        print(f"  recorded: {json.dumps(told['recorded'])}")
        print(f"  replayed: {json.dumps(told['replayed'])}")
    if found is not None:
        raise typer.Exit(FAILED)


def _describe(found: Difference) -> dict[str, Any]:
    before = json.loads(encode_record((found.at, found.event, found.recorded)))
    after = json.loads(encode_record((found.at, found.event, found.replayed)))
    return {
        "number": found.number, "at": found.at, "event": before["event"], "recorded": before["commands"],
        "replayed": after["commands"],
    }  # fmt: skip


# ---------------------------------------------------------------- another policy


def _compare(journal: Journal, found: Comparison, as_json: bool) -> None:
    changed = found.changed()
    told: dict[str, Any] = {
        "requests": len(found.recorded),
        "changed": len(changed),
        "recorded": _count(found.recorded.values()),
        "other": _count(found.other.values()),
        "first_changed": [_describe_change(before, after) for before, after in changed[:_CHANGED_SHOWN]],
        "note": _NOTE,
    }
    if as_json:
        print(json.dumps(told))
        return
    print(f"{told['requests']} requests; {len(changed)} would have ended otherwise")
    for tier in told["recorded"]:
        _print_tier(tier, told["recorded"][tier], told["other"][tier])
    if changed:
        print(f"the first {min(len(changed), _CHANGED_SHOWN)} that changed:")
    for one in told["first_changed"]:
        print(f"  {one['request_id']}  {one['tier']}: {one['recorded']} -> {one['other']}")
    print(_NOTE)


def _print_tier(tier: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    print(f"tier {tier}{'recorded':>32}{'other':>12}")
    for outcome in sorted({*before["outcomes"], *after["outcomes"]}):
        print(f"  {outcome:<30}{before['outcomes'].get(outcome, 0):>12}{after['outcomes'].get(outcome, 0):>12}")
    for name in ("wait_mean_s", "wait_p99_s", "promises_kept_ratio"):
        print(f"  {name:<30}{_show(before[name]):>12}{_show(after[name]):>12}")


def _show(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _count(fates: Iterable[Fate]) -> dict[str, dict[str, Any]]:
    """Figures by tier."""
    tiers: dict[str, list[Fate]] = {}
    for fate in fates:
        tiers.setdefault(fate.request.tier, []).append(fate)
    return {tier: _sum_up(tiers[tier]) for tier in sorted(tiers)}


def _sum_up(fates: Sequence[Fate]) -> dict[str, Any]:
    waits = sorted(fate.wait_s for fate in fates if fate.wait_s is not None)
    kept = [fate.kept for fate in fates if fate.kept is not None]
    return {
        "outcomes": dict(sorted(Counter(fate.outcome for fate in fates).items())),
        "wait_mean_s": sum(waits) / len(waits) if waits else None,
        "wait_p99_s": waits[min(int(0.99 * len(waits)), len(waits) - 1)] if waits else None,
        "promises_kept_ratio": sum(kept) / len(kept) if kept else None,
    }


def _describe_change(before: Fate, after: Fate) -> dict[str, Any]:
    request = before.request
    return {
        "request_id": request.request_id, "tier": request.tier, "arrived_at": request.arrived_at,
        "recorded": before.outcome, "other": after.outcome, "recorded_wait_s": before.wait_s,
        "other_wait_s": after.wait_s,
    }  # fmt: skip
