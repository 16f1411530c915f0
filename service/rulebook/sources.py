"""Reads objectives and window plans from the files that people write."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from service.domain.units import TierName
from service.settings.fault import SettingsFault, SettingsRefusedError
from service.settings.load import Lines, locate, parse_tree, read_file
from service.settings.parts import Part, Ratio, Seconds
from service.slo.objective import (
    BAD_EVENTS_MIN,
    PROBE_BELOW_PER_HOUR,
    Indicator,
    Objective,
    Severity,
    Speed,
    TierObjectives,
)
from service.slo.window import WindowPair, WindowPlan, find_faults, find_unreachable, read_duration
from service.telemetry.labels import NO_TIER

Duration = Annotated[int, BeforeValidator(lambda text: read_duration(text) if isinstance(text, str) else text)]
_SEVERITIES = {"page": Severity.PAGE, "ticket": Severity.TICKET, "none": None}
_SPENT_TOLERANCE = 1e-9


class TargetsPart(Part):
    """Latency thresholds, as in the gateway's configuration."""

    ttft: dict[Annotated[int, Field(gt=0)], Seconds] = Field(default_factory=dict)
    tpot_s: Seconds | None = None


class ObjectivePart(Part):
    """One objective and who is told."""

    target: Ratio
    fast: Literal["page", "ticket", "none"] = "page"
    slow: Literal["page", "ticket", "none"] = "ticket"


class LowTrafficPart(Part):
    """When there is too little to judge by."""

    bad_events_min: Annotated[int, Field(ge=1, le=1000)] = BAD_EVENTS_MIN
    probe_below_per_hour: Annotated[float, Field(ge=0, le=1e6)] = PROBE_BELOW_PER_HOUR


class WindowPart(Part):
    """OpenSLO v1: the period of the budget."""

    duration: str
    isRolling: Literal[True]  # noqa: N815 - OpenSLO's name


class TierPart(Part):
    """One file of ``objectives/``."""

    tier: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,31}$")]
    service: Annotated[str, Field(min_length=1, max_length=64)]
    description: str = ""
    best_effort: bool = False
    budgetingMethod: Literal["Occurrences"] = "Occurrences"  # noqa: N815 - OpenSLO's name
    timeWindow: Annotated[list[WindowPart], Field(min_length=1, max_length=1)] = Field(  # noqa: N815 - OpenSLO's name
        default_factory=lambda: [WindowPart(duration="30d", isRolling=True)]
    )
    targets: TargetsPart = TargetsPart()
    objectives: dict[Literal["availability", "ttft", "tpot", "all"], ObjectivePart] = Field(default_factory=dict)
    low_traffic: LowTrafficPart = LowTrafficPart()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.tier == NO_TIER:
            raise ValueError(f"tier is {NO_TIER!r}, which is what figures call requests of no tier")
        if self.best_effort is bool(self.objectives):
            raise ValueError("a tier has objectives or best_effort: true, one of the two")
        for name, target in (("ttft", self.targets.ttft), ("tpot", self.targets.tpot_s)):
            if bool(target) is not (name in self.objectives):
                raise ValueError(f"the objective {name} and its target go together: one is written without the other")
        if list(self.targets.ttft.items()) != sorted(self.targets.ttft.items()):
            raise ValueError("targets.ttft must be written with ascending prompt tokens")
        return self


class PairPart(Part):
    """One pair of windows."""

    speed: Literal["fast", "slow"]
    long: Duration
    short: Duration
    factor: Annotated[float, Field(gt=0, le=1000)]
    budget_spent: Ratio


class PlanPart(Part):
    """One file of ``windows/``."""

    period: Duration
    bucket: Duration
    pairs: Annotated[list[PairPart], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything people have written. ``descriptions`` and ``services`` by tier are for OpenSLO and dashboards."""

    tiers: tuple[TierObjectives, ...]
    plan: WindowPlan
    descriptions: dict[str, str]
    services: dict[str, str]


def read_sources(folder: Path) -> Sources:
    """Read ``folder/objectives/*.yaml`` and the window plan they name.

    Raises:
        SettingsRefusedError: with every fault of every file, each path beginning with the file's name.
    """
    faults: list[SettingsFault] = []
    parts: list[TierPart] = []
    for path in sorted((folder / "objectives").glob("*.yaml")):
        part = _read(path, TierPart, faults)
        if part is not None:
            if part.tier != path.stem:
                faults.append(SettingsFault(f"{path.name}: tier", f"is {part.tier!r}", "name the file after the tier"))
            parts.append(part)
    if not parts and not faults:
        faults.append(SettingsFault(str(folder), "has no objectives/*.yaml", "write one file per tier"))
    tiers = tuple(build_tier(part) for part in parts)
    windows = {tier.windows for tier in tiers if not tier.best_effort} or {"30d"}
    if len(windows) > 1:
        message = f"tiers differ in their timeWindow: {', '.join(sorted(windows))}"
        faults.append(SettingsFault("objectives", message, "use one for all: their rules are recorded together"))
    name = min(windows)
    plan = _read_plan(folder / "windows" / f"{name}.yaml", name, faults)
    if plan is not None:
        faults += [
            SettingsFault(f"{tier.tier}.yaml: objectives", fault, "lower the factor, or raise the objective")
            for tier in tiers
            for fault in find_unreachable(plan, tier.objectives)
        ]
    if faults or plan is None:
        raise SettingsRefusedError(faults)
    descriptions = {part.tier: part.description for part in parts}
    return Sources(tiers, plan, descriptions, {part.tier: part.service for part in parts})


def build_tier(part: TierPart) -> TierObjectives:
    """The values that the file means."""
    tier = TierName(part.tier)
    return TierObjectives(
        tier,
        tuple(
            Objective(tier, indicator, written.target, _SEVERITIES[written.fast], _SEVERITIES[written.slow])
            for indicator in Indicator
            if (written := part.objectives.get(indicator.value)) is not None
        ),
        tuple(part.targets.ttft.items()),
        part.targets.tpot_s,
        part.timeWindow[0].duration,
        part.low_traffic.bad_events_min,
        part.low_traffic.probe_below_per_hour,
    )


def validate(tree: Any, lines: Lines, kind: type[Any], where: str, faults: list[SettingsFault]) -> Any:  # noqa: ANN401 - a tree
    """``tree`` as ``kind``; ``None`` if it is not one, with what is wrong added to ``faults``."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            path = _write_path(problem["loc"], lines)
            message = str(problem["msg"]).removeprefix("Value error, ").rstrip(".")
            faults.append(SettingsFault(f"{where}: {path}".rstrip(": "), message, "", locate(path, lines)))
        return None


def _write_path(location: tuple[int | str, ...], lines: Lines) -> str:
    path = ""
    for key in location:
        if key == "[key]":  # pydantic's mark for a fault of the key itself
            break
        item = f"{path}[{key}]"
        path = item if item in lines else f"{path}.{key}" if path else str(key)
    return path


def _read(path: Path, kind: type[Any], faults: list[SettingsFault]) -> Any:  # noqa: ANN401 - one of the parts
    try:
        tree, lines, doubled = parse_tree(read_file(path))
    except SettingsRefusedError as refused:
        faults += [
            SettingsFault(f"{path.name}: {fault.path}", fault.message, fault.cure, fault.line)
            for fault in refused.faults
        ]
        return None
    faults += [SettingsFault(f"{path.name}: {fault.path}", fault.message, fault.cure, fault.line) for fault in doubled]
    return validate(tree, lines, kind, path.name, faults)


def _read_plan(path: Path, name: str, faults: list[SettingsFault]) -> WindowPlan | None:
    part = _read(path, PlanPart, faults)
    if part is None:
        return None
    pairs = tuple(WindowPair(Speed(pair.speed), pair.long, pair.short, pair.factor) for pair in part.pairs)
    plan = WindowPlan(name, part.period, part.bucket, pairs)
    faults += [SettingsFault(f"{path.name}: pairs", fault) for fault in find_faults(plan)]
    for index, (pair, written) in enumerate(zip(pairs, part.pairs, strict=True)):
        spent = pair.budget_share(plan.period_s)
        if abs(spent - written.budget_spent) > _SPENT_TOLERANCE:
            message = f"is {written.budget_spent:g}, but factor x long / period is {spent:g}"
            faults.append(SettingsFault(f"{path.name}: pairs[{index}].budget_spent", message, "correct one of them"))
    return plan
