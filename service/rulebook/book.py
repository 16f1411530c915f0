"""Makes every generated file of ``slo/``, and compares them with what is there."""

import difflib
from collections.abc import Mapping
from pathlib import Path

from service.rulebook.cases import build_absence, build_mutants, build_scenarios, render_cases
from service.rulebook.derived import render_edges, render_scaler_inputs
from service.rulebook.input_cases import build_prober_mutants, render_prober_cases, render_scaler_cases
from service.rulebook.part_cases import build_part_mutants, render_part_cases
from service.rulebook.render import render_groups
from service.rulebook.sources import Sources
from service.slo.alerts import build_common_alerts, build_probe_alerts, build_tier_alerts
from service.slo.part_alerts import build_part_alerts
from service.slo.rules import build_recordings

GENERATED = ("rules", "tests", "dashboards", "derived")
"""Folders in which nothing else may be."""


def build_rules(sources: Sources, divisor: int = 1) -> dict[str, str]:
    """Rule files by path; with a ``divisor`` all times are as much shorter, for drills."""
    plan = sources.plan.shrink(divisor)
    rules = {
        "rules/recording.yaml": render_groups(build_recordings(plan, divisor)),
        "rules/alerts.yaml": render_groups([build_common_alerts(divisor), build_part_alerts(divisor)]),
        "rules/prober.yaml": render_groups([build_probe_alerts(sources.tiers)]),
    }
    for tier in sources.tiers:
        if not tier.best_effort:
            rules[f"rules/alerts-{tier.tier}.yaml"] = render_groups([build_tier_alerts(plan, tier, divisor)])
    return rules


def build_book(sources: Sources) -> dict[str, str]:
    """Texts by path under the folder of the sources.

    Raises:
        ModuleNotFoundError: Grafana's library is not installed.
    """
    from service.rulebook.dashboards import build_dashboards  # only who generates needs Grafana's library

    plan, tiers = sources.plan, sources.tiers
    book = build_rules(sources) | build_dashboards(sources)
    book["derived/edges.yaml"] = render_edges(tiers)
    book["derived/scaler.yaml"] = render_scaler_inputs(tiers)
    book["tests/scaler.yaml"] = render_scaler_cases(tiers)
    book["tests/prober.yaml"] = render_prober_cases(tiers)
    book["tests/parts.yaml"] = render_part_cases()
    book["tests/mutants/parts.yaml"] = render_groups([build_part_mutants()])
    book["tests/mutants/prober.yaml"] = render_groups([build_prober_mutants(tiers)])
    for tier in tiers:
        if tier.best_effort:
            continue
        book[f"tests/mutants/{tier.tier}.yaml"] = render_groups([build_mutants(plan, tier)])
        rule_files = (
            "../rules/recording.yaml",
            "../rules/alerts.yaml",
            f"../rules/alerts-{tier.tier}.yaml",
            f"mutants/{tier.tier}.yaml",
        )
        rows = [[(scenario, objective) for scenario in build_scenarios(objective)] for objective in tier.objectives]
        absence = [(build_absence(tier.objectives[0]), tier.objectives[0])]
        book[f"tests/{tier.tier}.yaml"] = render_cases([*zip(*rows, strict=True), absence], rule_files)
    return book


def write_book(folder: Path, book: Mapping[str, str]) -> list[str]:
    """Write what differs, remove what is in generated folders and not in ``book``; the paths that changed."""
    changed = []
    for name, text in book.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            changed.append(name)
    for name in find_strangers(folder, book):
        (folder / name).unlink()
        changed.append(name)
    return changed


def compare_book(folder: Path, book: Mapping[str, str]) -> list[str]:
    """What differs, as lines of a unified diff."""
    lines: list[str] = []
    for name, text in book.items():
        path = folder / name
        there = path.read_text(encoding="utf-8") if path.is_file() else ""
        lines += difflib.unified_diff(there.splitlines(), text.splitlines(), f"a/{name}", f"b/{name}", "", "", 1, "")
    lines += [f"{name}: nothing generates this file" for name in find_strangers(folder, book)]
    return lines


def find_strangers(folder: Path, book: Mapping[str, str]) -> list[str]:
    """Files in generated folders that ``book`` does not have."""
    paths = (path for name in GENERATED for path in sorted((folder / name).rglob("*")) if path.is_file())
    return [name for path in paths if (name := path.relative_to(folder).as_posix()) not in book]
