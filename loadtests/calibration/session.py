"""Measures one run after another on one engine: the sweep with its fit, then the held-out runs with predictions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich.progress import Progress

from loadtests.calibration.client import Measured, RunFailedError, measure
from loadtests.calibration.engine import Target, read_prefix_hits
from loadtests.calibration.fit import ROUNDS, STEPS, Fit, Sample, estimate_noise, fit
from loadtests.calibration.machine import Meter
from loadtests.calibration.plan import Mix, Run, plan_flood, plan_held_out
from loadtests.calibration.replay import Question, compute_capacity_rps
from loadtests.calibration.texts import Ask, Writer
from loadtests.calibration.verdict import Judged, judge_run
from service.emulator.profiles import CPU_SMALL, EngineProfile, Frontend

FLOOD_REQUESTS = 120
RUN_LIMIT_S = 60.0
CLEAN_SHARE = 0.7
"""With at least this part of the sweep undisturbed, the rest of it is left out of the fit."""


@dataclass
class Session:
    """One engine being measured."""

    target: Target
    writer: Writer
    meter: Meter
    progress: Progress
    patience_s: float
    repeated: int = 0
    disturbed: list[str] = field(default_factory=list)

    def measure(self, run: Run) -> tuple[Measured, float]:
        """A run and the prompt tokens found cached in it; again where others used the processors meanwhile."""
        while True:
            asks = self.writer.write(run, secrets.token_hex(8))
            before = read_prefix_hits(self.target)
            self.patience_s -= self.meter.wait_until_quiet(self.patience_s)
            began_at = time.perf_counter()
            found = self._try(run.name, asks)
            if not found.usage.is_disturbed:
                break
            if self.patience_s <= 0.0:
                self.disturbed.append(f"{run.name}: {found.usage.foreign_cores:.2f}")
                break
            self.patience_s -= time.perf_counter() - began_at
            self.repeated += 1
        if isinstance(found, RunFailedError):
            raise found
        return found, read_prefix_hits(self.target) - before

    def _try(self, name: str, asks: Sequence[Ask]) -> Measured | RunFailedError:
        try:
            return measure(name, asks, (self.target.host, self.target.port), RUN_LIMIT_S, self.meter)
        except RunFailedError as error:
            return error

    def measure_sweep(self, runs: Sequence[Run]) -> list[Measured]:
        """All runs of the sweep, in order."""
        task = self.progress.add_task("sweep", total=len(runs))
        found = []
        for run in runs:
            found.append(self.measure(run)[0])
            self.progress.advance(task)
        return found

    def question(self, run: Run) -> list[Question]:
        """What the engine would be asked in this run, without asking it."""
        asks = self.writer.write(run, "")
        return [Question(ask.call.at_s, ask.prompt_tokens, ask.call.output_tokens, ask.block_hashes) for ask in asks]


def build_template(target: Target) -> EngineProfile:
    """The limits of the engine; what steps cost there is to be found."""
    return replace(
        CPU_SMALL,
        name="calibrated",
        block_size=target.block_size,
        kv_blocks=target.kv_blocks,
        max_num_seqs=target.max_num_seqs,
        max_num_batched_tokens=target.max_num_batched_tokens,
        max_model_len=target.context_tokens,
        frontend=Frontend(),
    )


def fit_sweep(session: Session, seen: Sequence[Measured]) -> Fit:
    """The profile that agrees best with the sweep."""
    task = session.progress.add_task("fit", total=ROUNDS * len(STEPS))
    clean = [one for one in seen if not one.usage.is_disturbed]
    used = clean if len(clean) >= CLEAN_SHARE * len(seen) else seen
    samples = [Sample(one.questions, one.times) for one in used]
    found = fit(build_template(session.target), samples, lambda: session.progress.advance(task))
    alone = [one.stamps[0] for one in used if len(one.questions) == 1]
    noise = round(estimate_noise(alone), 3)
    session.progress.update(task, completed=ROUNDS * len(STEPS))
    return replace(found, profile=replace(found.profile, cost=replace(found.profile.cost, noise_cv=noise)))


@dataclass
class HeldOut:
    """What came of the held-out runs. ``capacities_rps`` are those of the mixes, by the model."""

    judged: list[Judged] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    capacities_rps: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


def measure_held_out(
    session: Session, profile: EngineProfile, mixes: Sequence[Mix], loads: Sequence[float], seconds: float, seed: int
) -> HeldOut:
    """Every mix at every load, measured and predicted."""
    task = session.progress.add_task("held-out runs", total=len(mixes) * len(loads))
    found = HeldOut()
    context = session.target.context_tokens
    for mix in mixes:
        flood = session.question(plan_flood(mix, FLOOD_REQUESTS, context))
        capacity_rps = found.capacities_rps[mix.name] = compute_capacity_rps(profile, flood)
        for number, load in enumerate(loads):
            run = plan_held_out(mix, load * capacity_rps, seconds, seed + number, context)
            try:
                seen, hits = session.measure(run)
            except RunFailedError as error:
                found.failed.append(str(error))
            else:
                found.measured.append(seen)
                found.judged.append(judge_run(profile, seen, load, hits))
            session.progress.advance(task)
    return found
