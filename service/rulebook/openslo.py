"""Writes objectives as OpenSLO v1 documents, and reads them from such.

One ``SLO`` per objective (https://github.com/OpenSLO/OpenSLO, version v1): a ratio of two counters of ours; its labels
say which ``tier`` and ``slo``. What OpenSLO has no word for (thresholds by prompt size, who is told) is in annotations,
so that what is written reads back as it was; documents that measure anything else are refused.
"""

import re
from typing import Any

import yaml

from service.rulebook.sources import Sources, TierPart, validate
from service.settings.fault import SettingsFault, SettingsRefusedError
from service.slo.objective import Indicator, Objective, TierObjectives
from service.slo.rules import EVENTS_METRIC

_VERSION = "openslo/v1"
_PREFIX = "sluice/"


def export_openslo(sources: Sources) -> str:
    """All objectives, as YAML documents. A tier that promises nothing has none."""
    documents = [_write_slo(sources, tier, objective) for tier in sources.tiers for objective in tier.objectives]
    return yaml.safe_dump_all(documents, sort_keys=False, width=1000)


def import_openslo(text: str) -> dict[str, dict[str, Any]]:
    """Trees of objectives' files by tier.

    Raises:
        SettingsRefusedError: with every fault of every document.
    """
    faults: list[SettingsFault] = []
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise SettingsRefusedError([SettingsFault("(file)", f"is not valid YAML: {error}")]) from None
    trees: dict[str, dict[str, Any]] = {}
    for number, document in enumerate(documents):
        _read_slo(document, f"documents[{number}]", trees, faults)
    for tier, tree in trees.items():
        validate(tree, {}, TierPart, tier, faults)
    if not trees and not faults:
        faults.append(SettingsFault("(file)", f"has no SLO of {_VERSION}"))
    if faults:
        raise SettingsRefusedError(faults)
    return trees


def _write_slo(sources: Sources, tier: TierObjectives, objective: Objective) -> dict[str, Any]:
    name = f"sluice-{tier.tier}-{objective.indicator}".replace("_", "-")
    inner = f'tier="{tier.tier}",slo="{objective.indicator}"'
    annotations = {
        "fast": objective.fast.value if objective.fast else "none",
        "slow": objective.slow.value if objective.slow else "none",
        "bad_events_min": str(tier.bad_events_min),
        "probe_below_per_hour": f"{tier.probe_below_per_hour:g}",
    }
    if objective.indicator is Indicator.TTFT:
        annotations["ttft"] = ",".join(f"{tokens}={target_s!r}" for tokens, target_s in tier.ttft_targets_s)
    if objective.indicator is Indicator.TPOT:
        annotations["tpot_s"] = repr(tier.tpot_target_s)
    return {
        "apiVersion": _VERSION,
        "kind": "SLO",
        "metadata": {
            "name": name,
            "displayName": f"{tier.tier} {objective.indicator}",
            "labels": {"tier": str(tier.tier), "slo": objective.indicator.value},
            "annotations": {f"{_PREFIX}{key}": value for key, value in annotations.items()},
        },
        "spec": {
            "description": sources.descriptions.get(tier.tier, ""),
            "service": sources.services.get(tier.tier, "sluice"),
            "indicator": {
                "metadata": {"name": name},
                "spec": {
                    "ratioMetric": {
                        "counter": True,
                        "good": _write_source(f'sum({EVENTS_METRIC}{{{inner},result="good"}})'),
                        "total": _write_source(f'sum({EVENTS_METRIC}{{{inner},result=~"good|bad"}})'),
                    }
                },
            },
            "timeWindow": [{"duration": tier.windows, "isRolling": True}],
            "budgetingMethod": "Occurrences",
            "objectives": [{"displayName": objective.indicator.value, "target": objective.target}],
        },
    }


def _write_source(query: str) -> dict[str, Any]:
    return {"metricSource": {"type": "Prometheus", "spec": {"query": query}}}


def _read_slo(document: Any, where: str, trees: dict[str, dict[str, Any]], faults: list[SettingsFault]) -> None:  # noqa: ANN401 - any YAML
    def refuse(path: str, message: str, cure: str = "") -> None:
        faults.append(SettingsFault(f"{where}.{path}", message, cure))

    if not isinstance(document, dict) or document.get("kind") != "SLO":
        return  # data sources, services and alert policies say nothing of a promise
    if document.get("apiVersion") != _VERSION:
        refuse("apiVersion", f"is {document.get('apiVersion')!r}", f"only {_VERSION} is read")
        return
    labels, spec = _mapping(document, "metadata", "labels"), _mapping(document, "spec")
    annotations = _mapping(document, "metadata", "annotations")
    query = str(_mapping(spec, "indicator", "spec", "ratioMetric", "good", "metricSource", "spec").get("query", ""))
    tier, indicator = (labels.get(name) or _find_label(query, name) for name in ("tier", "slo"))
    if query and EVENTS_METRIC not in query:
        refuse("spec.indicator", f"measures something else than {EVENTS_METRIC}", "leave this document out")
        return
    if not tier or indicator not in set(Indicator):
        cure = f"give it the labels tier and slo, one of {', '.join(Indicator)}"
        refuse("metadata.labels", "do not say which objective this is", cure)
        return
    target = _read_target(spec.get("objectives"))
    if target is None:
        refuse("spec.objectives", "is not one objective with a target or targetPercent")
        return
    tree = trees.setdefault(
        str(tier),
        {
            "tier": str(tier), "service": spec.get("service", "sluice"), "description": spec.get("description", ""),
            "budgetingMethod": spec.get("budgetingMethod"), "timeWindow": spec.get("timeWindow"),
            "targets": {}, "objectives": {}, "low_traffic": {},
        },
    )  # fmt: skip
    if indicator in tree["objectives"]:
        refuse("metadata.labels", f"is a second objective {indicator} of tier {tier}", "keep one")
    own = {key.removeprefix(_PREFIX): value for key, value in annotations.items() if key.startswith(_PREFIX)}
    told: dict[str, Any] = {key: own[key] for key in ("fast", "slow") if key in own}
    tree["objectives"][str(indicator)] = {"target": target, **told}
    try:
        _read_figures(own, tree)
    except ValueError as error:
        refuse("metadata.annotations", f"are not as they are exported: {error}")


def _read_figures(own: dict[str, str], tree: dict[str, Any]) -> None:
    if "ttft" in own:
        pairs = (pair.split("=") for pair in own["ttft"].split(","))
        tree["targets"]["ttft"] = {int(tokens): float(target_s) for tokens, target_s in pairs}
    if "tpot_s" in own:
        tree["targets"]["tpot_s"] = float(own["tpot_s"])
    if "bad_events_min" in own:
        tree["low_traffic"]["bad_events_min"] = int(own["bad_events_min"])
    if "probe_below_per_hour" in own:
        tree["low_traffic"]["probe_below_per_hour"] = float(own["probe_below_per_hour"])


def _read_target(objectives: Any) -> float | None:  # noqa: ANN401 - any YAML
    if not isinstance(objectives, list) or len(objectives) != 1 or not isinstance(objectives[0], dict):
        return None
    target, percent = objectives[0].get("target"), objectives[0].get("targetPercent")
    if isinstance(target, int | float) and percent is None:
        return float(target)
    return round(percent / 100, 12) if isinstance(percent, int | float) and target is None else None


def _mapping(tree: Any, *keys: str) -> dict[str, Any]:  # noqa: ANN401 - any YAML
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) else {}


def _find_label(query: str, name: str) -> str | None:
    found = re.search(rf'\b{name}="([^"]*)"', query)
    return None if found is None else found[1]
