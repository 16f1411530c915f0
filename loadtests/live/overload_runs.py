"""Runs one arm of the overload test: fresh workers, the gateway before them, an open-loop client, all as children.

The engine alone is measured here too, with the same client in a closed loop: its peak is what loads and the ideal row
are made from.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from loadtests.live.child import ChildError, choose_free_ports, run_child, wait_until_answering
from loadtests.live.ideal import ANCHOR_RATIO, Ideal, compute_ideal, compute_mix_peak, compute_peak
from loadtests.live.open_loop import Plan
from loadtests.live.overload_arms import ARMS, DIRECT_ARM, Arm, EngineFacts, Setting
from loadtests.live.overload_report import Run
from loadtests.live.peer_configs import BENCH_KEY, Site
from loadtests.live.peers import REPOSITORY, Installed, run_peer
from loadtests.live.traffic import Mix, Schedule, compute_arrivals

SLOTS = 16  # cpu-small's max_num_seqs
PROFILE = "cpu-small"
PRIORITY = -10
START_LIMIT_S = 30.0
CLIENT_GRACE_S = 30.0
RAMP_SHARES = (0.5, 1.0, 1.25)
RAMP_WARM_UP_S, RAMP_SECONDS = 4.0, 8.0
QUICK_RAMP_SHARES = (1.125,)


class OutOfTimeError(Exception):
    """The test has reached its limit."""


@dataclass
class Gathered:
    """What one invocation has gathered so far."""

    give_up_at: float
    runs: list[Run] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    ramps: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    unit_rps: float = 0.0
    raised: bool = True


def build_worker_command(port: int, seed: int, speed: float, extra: Sequence[str]) -> list[str]:
    """One emulated worker; a speed other than one scales every step."""
    slow = ["--fault", f"slow;factor={1 / speed:.6f}"] if speed != 1.0 else []
    return [
        *(sys.executable, "-m", "service.emulator", "--port", str(port), "--profile", PROFILE),
        *("--seed", str(seed), "--request-log", "0", *slow, *extra),
    ]


def raise_priority(test: Gathered, pid: int) -> None:
    """The same raised priority for a whole process group; without the right to, all stay as they are."""
    try:
        os.setpriority(os.PRIO_PGRP, pid, PRIORITY)
    except PermissionError:
        test.raised = False
    except ProcessLookupError:
        pass


@contextmanager
def run_emulators(
    test: Gathered, ports: Sequence[int], speed: float, extra: Sequence[str], folder: Path
) -> Iterator[None]:
    """Emulated workers, one process each, ready."""
    with ExitStack() as stack:
        for index, port in enumerate(ports):
            log = folder / f"worker-{port}.log"
            process = stack.enter_context(
                run_child(build_worker_command(port, index, speed, extra), log, cwd=REPOSITORY)
            )
            raise_priority(test, process.pid)
            wait_until_answering(process, f"http://127.0.0.1:{port}/health", log, START_LIMIT_S, BENCH_KEY)
        yield


def run_client(test: Gathered, plan: Plan) -> dict[str, object]:
    """One plan in a process of its own; its result."""
    argv = [sys.executable, "-m", "loadtests.live.open_loop"]
    if test.raised:
        argv += ["--nice", str(PRIORITY)]
    limit_s = min(plan.limit_s + plan.schedule.warm_up_s + CLIENT_GRACE_S, test.give_up_at - time.monotonic())
    if limit_s <= 0:
        raise OutOfTimeError
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            argv, input=plan.dump(), cwd=REPOSITORY, capture_output=True, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ChildError(f"the client did not end within {limit_s:.0f} s") from error
    if done.returncode != 0:
        raise ChildError(f"client: {done.stderr[-500:].strip()}")
    result = json.loads(done.stdout)
    if not isinstance(result, dict):
        raise ChildError("client: no result")
    return result


@contextmanager
def run_arm(
    test: Gathered, arm: Arm, installed: Installed | None, setting: Setting, options: argparse.Namespace
) -> Iterator[tuple[int, ...]]:
    """Fresh workers and the arm's gateway before them; gives the ports that the client asks in turn."""
    ports = choose_free_ports(options.first_port, setting.mix.workers + 2)
    workers, port, admin_port = ports[:-2], ports[-2], ports[-1]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-overload-")))
        extra = arm.build_worker_options(setting)
        stack.enter_context(run_emulators(test, workers, options.engine_speed, extra, folder))
        if arm.build_peer is None or installed is None:
            yield tuple(workers)
            return
        site = Site(port, admin_port, tuple(workers), folder)
        running = stack.enter_context(run_peer(arm.build_peer(setting), installed, site))
        raise_priority(test, running.pid)
        yield (port,)


def build_plan(arm: Arm, mix: Mix, ports: tuple[int, ...], schedule: Schedule, *, keep_rows: bool) -> Plan:
    """What the client does with one arm."""
    last_s = max(seconds for targets in mix.tiers for _, seconds in targets.ttft_s)
    answer_s = max(shape.tokens * mix.choose_targets(shape.tier).tpot_s for shape in mix.shapes)
    return Plan(
        ports=ports,
        mix=mix,
        schedule=schedule,
        headers=arm.build_headers(mix),
        bodies=arm.build_bodies(mix),
        limit_s=schedule.seconds + last_s + answer_s + 1.0,
        keep_rows=keep_rows,
    )


def measure_engine(test: Gathered, mix: Mix, options: argparse.Namespace) -> EngineFacts:
    """A closed-loop ramp on bare workers, once for each tier alone: the best goodput that meets the targets."""
    first = mix.tiers[0].tier
    tiers = [targets.tier for targets in mix.tiers]
    if len({(shape.prompt_tokens, shape.tokens) for shape in mix.shapes}) == 1:
        tiers = [first]  # one shape: what the strictest tier gets, all get
    shares = QUICK_RAMP_SHARES if options.quick else RAMP_SHARES
    answer_s = 0.0
    for tier in tiers:
        levels = []
        for share in shares:
            plan = Plan(
                ports=(),
                mix=mix.restrict(tier),
                schedule=Schedule(1.0, RAMP_SECONDS, RAMP_WARM_UP_S),
                concurrency=round(share * SLOTS * mix.workers),
            )
            setting = Setting(mix, EngineFacts(SLOTS, {}, 0.0))
            with run_arm(test, ARMS[DIRECT_ARM], None, setting, options) as ports:
                closed = run_client(test, replace(plan, ports=ports))["closed"]
            if not isinstance(closed, dict):
                raise ChildError("client: no figures of the closed loop")
            levels.append({name: float(value) for name, value in closed.items()})
            if share >= 1.0 and not answer_s:
                answer_s = levels[-1]["mean_s"]
        test.ramps[tier] = levels
    peaks = {
        targets.tier: compute_peak(test.ramps.get(targets.tier, test.ramps[first])) / mix.workers
        for targets in mix.tiers
    }
    return EngineFacts(SLOTS, peaks, answer_s)


def compute_unit_rps(mix: Mix, facts: EngineFacts) -> float:
    """1x in requests per second, for all workers together."""
    shares = {targets.tier: mix.compute_share(targets.tier) for targets in mix.tiers}
    return ANCHOR_RATIO * mix.workers * compute_mix_peak(shares, facts.peak_rps)


def build_schedule(options: argparse.Namespace, rate_rps: float, number: int) -> Schedule:
    """The schedule of one pass; every pass has a trace of its own, the same for all arms."""
    return Schedule(rate_rps, options.seconds, options.warm_up, options.cool_down, options.seed + number - 1)


def compute_offered_rps(mix: Mix, schedules: Sequence[Schedule]) -> dict[str, float]:
    """What really arrives in the counted windows, by tier in the order of rank: the rate, but for rounding."""
    counts = dict.fromkeys((targets.tier for targets in mix.tiers), 0)
    for schedule in schedules:
        for arrival in compute_arrivals(mix, schedule):
            counts[mix.shapes[arrival.shape].tier] += arrival.counted
    seconds = sum(schedule.seconds for schedule in schedules)
    return {tier: count / seconds for tier, count in counts.items()}


def compute_ideals(
    mix: Mix, facts: EngineFacts, loads: Sequence[float], options: argparse.Namespace
) -> dict[float, Ideal]:
    """The bound at each load, for the very traces that will be offered."""
    peaks = {tier: rps * mix.workers for tier, rps in facts.peak_rps.items()}
    unit_rps = compute_unit_rps(mix, facts)
    ideals = {}
    for load in loads:
        schedules = [build_schedule(options, load * unit_rps, number + 1) for number in range(options.passes)]
        ideals[load] = compute_ideal(compute_offered_rps(mix, schedules), peaks)
    return ideals


def measure_run(
    test: Gathered,
    name: str,
    installed: Installed | None,
    setting: Setting,
    options: argparse.Namespace,
    schedule: Schedule,
) -> dict[str, object]:
    """One arm under one schedule, on fresh processes."""
    with run_arm(test, ARMS[name], installed, setting, options) as ports:
        return run_client(test, build_plan(ARMS[name], setting.mix, ports, schedule, keep_rows=options.raw is not None))
