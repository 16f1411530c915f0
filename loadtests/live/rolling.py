"""Restarts every gateway and every worker under load, as a platform does, and counts what a client noticed.

    python -m loadtests.live.rolling [--quick] [--rate 6] [--seconds 300]

Three gateways behind a real Envoy, two emulated workers, an open-loop client; each process is ended by the hooks its
pod runs and begun again, one after the other (``loadtests.live.rolling_site``). The promise that is checked: no failed
request, no refused one, no cut stream, and no tier below its objective. Exit code 1 if it is broken, or if the load was
over before the rollout was.

The second worker is ended before it is empty, so that its engine has streams to finish after SIGTERM. A control, the
same service ended without hooks, shows that the load would have noticed.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from loadtests.live.child import ChildError, interrupt_on_sigterm
from loadtests.live.figures import format_markdown
from loadtests.live.open_loop import Plan
from loadtests.live.overhead_report import read_figure
from loadtests.live.overload_arms import build_key
from loadtests.live.peer_install import InstallError
from loadtests.live.peers import REPORTS, REPOSITORY
from loadtests.live.rolling_site import RollingSite, Shape, Step, run_site
from loadtests.live.traffic import HI, LO, Mix, Schedule, Targets
from loadtests.live.traffic import Shape as RequestShape

OBJECTIVE = 0.99
_LEAD_S = 3.0
"""The rollout begins so long after the counted window."""
_CLIENT_GRACE_S = 90.0

ROLLING = Mix(
    name="rolling",
    workers=2,
    tiers=(Targets(HI, ((4096, 1.0),), 0.05), Targets(LO, ((4096, 2.5),), 0.1)),
    shapes=(
        RequestShape("chat-hi", HI, 0.45, 64, 96),
        RequestShape("chat-lo", LO, 0.45, 256, 128),
        RequestShape("long-hi", HI, 0.05, 64, 2500),
        RequestShape("long-lo", LO, 0.05, 64, 2500),
    ),
)
"""Chats, and one answer in ten that takes as long as a pod's whole end may."""

QUICK = Mix(
    name="rolling-quick",
    workers=2,
    tiers=ROLLING.tiers,
    shapes=(RequestShape("chat-hi", HI, 0.7, 64, 64), RequestShape("long-lo", LO, 0.3, 64, 800)),
)

QUICK_SHAPE = Shape(gateways=2, worker_deadlines_s=(10.0, 1.5), drain_delay_s=2.0, grace_s=30.0)


@dataclass(frozen=True)
class Rollout:
    """What happened, and what the client saw of it."""

    steps: Sequence[Step]
    result: Mapping[str, object]
    seconds: float
    took_s: float


def find_broken_promises(rollout: Rollout, pods: int, objective: float = OBJECTIVE) -> list[str]:
    """Every way in which the rollout was noticed; empty if nobody noticed."""
    broken = []
    if len(rollout.steps) < pods:
        broken.append(f"only {len(rollout.steps)} of {pods} were restarted")
    if rollout.took_s + _LEAD_S > rollout.seconds:
        broken.append(f"the load was over after {rollout.seconds:.0f} s, the rollout after {rollout.took_s:.0f} s")
    tiers = rollout.result["tiers"]
    for tier, figures in (tiers if isinstance(tiers, dict) else {}).items():
        for verdict in ("failed", "refused", "short", "unfinished"):
            count = figures["verdicts"].get(verdict, 0)
            if count:
                broken.append(f"{tier}: {count} {verdict} {figures['failures'] or ''}".rstrip())
        attainment = figures["attainment"]
        if attainment is None or attainment < objective:
            broken.append(f"{tier}: attainment {attainment}, promised {objective}")
    return broken


def build_load(mix: Mix, port: int, rate_rps: float, seconds: float) -> Plan:
    """The load of one rollout."""
    return Plan(
        ports=(port,),
        mix=mix,
        schedule=Schedule(rate_rps, seconds, warm_up_s=2.0),
        headers={targets.tier: {"authorization": f"Bearer {build_key(targets.tier)}"} for targets in mix.tiers},
        limit_s=seconds + 60.0,
    )


def run_rollout(site: RollingSite, plan: Plan, folder: Path) -> Rollout:
    """Offer the load, restart everything meanwhile, and wait for the client."""
    seconds = plan.schedule.seconds
    (folder / "plan.json").write_text(plan.dump())
    with (folder / "plan.json").open() as written, (folder / "client.json").open("wb") as output:
        client = subprocess.Popen(
            [sys.executable, "-m", "loadtests.live.open_loop"], cwd=REPOSITORY, stdin=written, stdout=output
        )
    try:
        time.sleep(plan.schedule.warm_up_s + _LEAD_S)
        began_at = time.monotonic()
        site.roll(lambda line: print(f"  {line}", flush=True))
        took_s = time.monotonic() - began_at
        if client.poll() is None:
            client.send_signal(signal.SIGTERM)  # sends no more, and waits for what it has sent
        client.wait(_CLIENT_GRACE_S)
    finally:
        if client.poll() is None:
            client.kill()
            client.wait()
    if client.returncode != 0:
        raise ChildError(f"the client ended with {client.returncode}")
    return Rollout(site.steps, json.loads((folder / "client.json").read_text()), seconds, took_s)


def format_tiers(rollout: Rollout) -> str:
    """What each tier saw, as a table."""
    tiers = rollout.result["tiers"]
    rows = []
    for tier, figures in (tiers if isinstance(tiers, dict) else {}).items():
        verdicts = figures["verdicts"]
        cut = verdicts.get("short", 0) + verdicts.get("unfinished", 0)
        ttft, tpot = (read_figure(rollout.result, "tiers", tier, name, "p99") for name in ("ttft_ms", "tpot_ms"))
        rows.append(
            [
                tier,
                str(figures["offered"]),
                str(verdicts.get("failed", 0)),
                str(verdicts.get("refused", 0)),
                str(cut),
                f"{100 * (figures['attainment'] or 0.0):.2f} %",
                f"{ttft or 0.0:.0f}",
                f"{tpot or 0.0:.1f}",
            ]
        )
    heads = ["tier", "requests", "failed", "refused", "cut", "in time", "TTFT p99, ms", "TPOT p99, ms"]
    return format_markdown(heads, rows)


def format_steps(rollout: Rollout) -> str:
    """What was restarted, as a table."""
    rows = [
        [
            step.pod,
            f"{step.hook_s - step.began_s:.1f}",
            f"{step.gone_s - step.began_s:.1f}",
            f"{step.ready_s - step.began_s:.1f}",
            step.hook_said,
        ]
        for step in rollout.steps
    ]
    return format_markdown(["process", "hook, s", "gone after, s", "ready again after, s", "the hook said"], rows)


def parse_options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.live.rolling", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two gateways, short answers, no control")
    parser.add_argument("--rate", type=float, default=6.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=300.0, help="longest load; the rollout must fit in")
    parser.add_argument("--first-port", type=int, default=25200, help="free ports are taken from here on")
    parser.add_argument("--reports", type=Path, default=REPORTS, help="folder of the reports")
    return parser.parse_args(argv)


def measure(mix: Mix, shape: Shape, rate_rps: float, seconds: float, first_port: int) -> Rollout:
    """One rollout of a fresh service."""
    with tempfile.TemporaryDirectory(prefix="sluice-rolling-") as name:
        folder = Path(name)
        with run_site(mix, shape, first_port, folder) as site:
            return run_rollout(site, build_load(mix, site.proxy_port, rate_rps, seconds), folder)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it, print it, write it."""
    options = parse_options(argv)
    interrupt_on_sigterm()
    mix, shape = (QUICK, QUICK_SHAPE) if options.quick else (ROLLING, Shape())
    pods = shape.gateways + len(shape.worker_deadlines_s)
    print(f"{pods} restarts under {options.rate:g} requests per second, some {25 * pods} s", flush=True)
    try:
        rollout = measure(mix, shape, options.rate, options.seconds, options.first_port)
        broken = find_broken_promises(rollout, pods)
        print(f"\n{format_tiers(rollout)}\n\n{format_steps(rollout)}\n")
        print("nobody noticed" if not broken else "noticed:\n" + "\n".join(f"  {line}" for line in broken), flush=True)
        if options.quick:
            return 1 if broken else 0
        print("\nthe same without hooks, as the control:", flush=True)
        control = measure(mix, shape.without_hooks(), options.rate, options.seconds, options.first_port)
        print(f"\n{format_tiers(control)}")
    except (ChildError, InstallError, subprocess.TimeoutExpired) as error:
        print(f"rolling: {error}", file=sys.stderr)
        return 1
    if not find_broken_promises(control, pods):
        broken.append("the control broke no promise either: this load does not see restarts")
    _write(options.reports, rollout, control, broken, options.rate, shape)
    return 1 if broken else 0


def _write(
    reports: Path, rollout: Rollout, control: Rollout, broken: Sequence[str], rate_rps: float, shape: Shape
) -> None:
    reports.mkdir(parents=True, exist_ok=True)
    record = {
        "command": "python -m loadtests.live.rolling",
        "shape": asdict(shape),
        "rate_rps": rate_rps,
        "objective": OBJECTIVE,
        "rollout_s": round(rollout.took_s, 1),
        "steps": [asdict(step) for step in rollout.steps],
        "result": rollout.result,
        "without_hooks": control.result,
        "broken_promises": list(broken),
    }
    (reports / "rolling.json").write_text(json.dumps(record, indent=1) + "\n")
    verdict = "Nobody noticed." if not broken else "Noticed:\n\n" + "\n".join(f"* {line}" for line in broken)
    (reports / "rolling.md").write_text(
        f"# A rolling restart under load\n\n`python -m loadtests.live.rolling`: {shape.gateways} gateways behind Envoy"
        f" and {len(shape.worker_deadlines_s)} workers, each ended by its pod's hooks and begun again, one after the"
        f" other, while {rate_rps:g} requests per second arrive.\n\n{verdict}\n\n{format_tiers(rollout)}\n\n"
        f"{format_steps(rollout)}\n\nThe same service ended without hooks, drain delay and shutdown timeout:\n\n"
        f"{format_tiers(control)}\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
