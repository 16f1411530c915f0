"""Reads another policy for ``sluice replay``: settings by their usual names, laid over recorded ones.

Only what the core decides by is known here. What is applied before a request reaches the core (how long it may wait,
sizes of bodies) stands in the recorded requests and cannot be changed afterwards.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from service.domain.tier import Tier
from service.domain.units import TierName
from service.flow.config import BreakerConfig, FlowConfig, RetryConfig
from service.settings.fault import SettingsFault, SettingsRefusedError
from service.settings.load import locate, parse_tree, read_file
from service.settings.parts import Count, Part, Seconds
from service.settings.schema import BreakerSettings, RetrySettings

T = TypeVar("T", RetryConfig, BreakerConfig)

Change = Callable[[FlowConfig], FlowConfig]


class PolicyLimitSettings(Part):
    """Those of ``limits`` that the core decides by."""

    requests_per_worker: Count | None = None
    requests_per_new_worker: Count | None = None
    queued_requests_max: Count | None = None
    queued_tokens_max: Count | None = None
    retry_after_max_s: Seconds | None = None
    retry: RetrySettings | None = None
    breaker: BreakerSettings | None = None


class PolicyTierSettings(Part):
    """Those of a tier that the core decides by; ``ttft`` replaces the whole table."""

    rank: Annotated[int, Field(ge=0, le=100)] | None = None
    ttft: dict[Annotated[int, Field(gt=0)], Seconds] | None = None
    tpot_s: Seconds | None = None
    best_effort: bool | None = None


class PolicySettings(Part):
    """The whole file. ``brownout`` is the level an operator would force."""

    limits: PolicyLimitSettings = PolicyLimitSettings()
    tiers: dict[str, PolicyTierSettings] = Field(default_factory=dict)
    brownout: Annotated[int, Field(ge=0, le=3)] | None = None


def load_policy(path: Path, recorded: FlowConfig) -> Change:
    """The change that the file at ``path`` makes; raises ``SettingsRefusedError`` with every fault there is."""
    tree, lines, faults = parse_tree(read_file(path))
    try:
        policy = PolicySettings.model_validate(tree)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            where = ".".join(str(key) for key in problem["loc"])
            message, cure = problem["msg"], ""
            if problem["type"] == "extra_forbidden":
                message, cure = "is nothing that the core decides by", "a replay can change limits, tiers and brownout"
            faults.append(SettingsFault(where, message, cure, locate(where, lines)))
        raise SettingsRefusedError(faults) from None
    known = sorted(recorded.tiers)
    for name in policy.tiers:
        if name not in recorded.tiers:
            cure = f"use {' or '.join(known)}" if known else "the journal knows no tiers"
            faults.append(SettingsFault(f"tiers.{name}", "is not in the journal", cure, locate(f"tiers.{name}", lines)))
    if faults:
        raise SettingsRefusedError(faults)
    return lambda config: _lay_over(config, policy)


def _lay_over(config: FlowConfig, policy: PolicySettings) -> FlowConfig:
    limits = policy.limits
    changes: dict[str, Any] = {
        name: value
        for name in PolicyLimitSettings.model_fields
        if name not in ("retry", "breaker") and (value := getattr(limits, name)) is not None
    }
    if limits.retry is not None:
        changes["retry"] = _lay_part(config.retry, limits.retry)
    if limits.breaker is not None:
        changes["breaker"] = _lay_part(config.breaker, limits.breaker)
    if policy.brownout is not None:
        changes["shedding"] = replace(config.shedding, brownout_forced=policy.brownout)
    changes["tiers"] = _lay_tiers(config.tiers, policy.tiers)
    return replace(config, **changes)


def _lay_part(config: T, part: Part) -> T:
    return replace(config, **{name: getattr(part, name) for name in part.model_fields_set})


def _lay_tiers(tiers: Mapping[TierName, Tier], wanted: Mapping[str, PolicyTierSettings]) -> dict[TierName, Tier]:
    return {name: _lay_tier(tier, wanted[name]) if name in wanted else tier for name, tier in tiers.items()}


def _lay_tier(tier: Tier, wanted: PolicyTierSettings) -> Tier:
    given = wanted.model_fields_set
    if "rank" in given and wanted.rank is not None:
        tier = replace(tier, rank=wanted.rank)
    if "ttft" in given:
        tier = replace(tier, ttft_targets_s=tuple(sorted((wanted.ttft or {}).items())))
    if "tpot_s" in given:
        tier = replace(tier, tpot_target_s=wanted.tpot_s)
    if "best_effort" in given and wanted.best_effort is not None:
        tier = replace(tier, best_effort=wanted.best_effort)
    return tier
