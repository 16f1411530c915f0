"""The alarm drill: a fault in a worker pool behind a real gateway, and who is called when.

    make drill

A real Prometheus and a real Alertmanager run the shipped rules and routes with all windows divided by 60: an hour is
a minute. Three acts: little traffic in which one request fails (the rules may call nobody, though a rule without their
gates does); steady traffic and an outage of all workers (the page has to come within 10 s); the workers answer again
(the page has to end by itself). Prints a timeline and writes it as JSON.
"""

import argparse
import http.client
import json
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from loadtests.live.alarm_chain import ROOT, AlarmChain, Call, run_alarm_chain
from loadtests.live.child import (
    ChildError,
    choose_free_ports,
    interrupt_on_sigterm,
    run_child,
    wait_until_answering,
)
from service.cli.keys import describe_key
from service.gateway.auth import new_key
from service.rulebook.book import build_rules
from service.rulebook.render import render_groups
from service.rulebook.sources import Sources, read_sources
from service.slo.alerts import Gates, build_burn_alert
from service.slo.objective import Indicator, Severity, Speed
from service.slo.rules import RuleGroup

DIVISOR = 60
TIER = "priority"
PAGE, MUTANT = "SluiceBudgetBurnFast", "DrillWithoutGates"
PAGE_WITHIN_S = 10.0
END_WITHIN_S = 75.0
"""The longest short window of a page is 30 s here, and it goes on firing for 5 s."""

MODEL = "MiniMax-M3.1-Flash"
_REPORT = ROOT / "loadtests" / "reports" / "drill.json"
_START_LIMIT_S = 30.0


@dataclass
class Outcome:
    """What the drill found. Times are seconds from the act's own event; ``None``: it did not happen in time."""

    quiet_requests: int = 0
    quiet_failures: int = 0
    quiet_calls: list[str] = field(default_factory=list)
    ungated_after_s: float | None = None
    page_after_s: float | None = None
    end_after_s: float | None = None
    timeline: list[tuple[float, str]] = field(default_factory=list)

    def faults(self) -> list[str]:
        """What is not as it should be."""
        found = []
        if self.quiet_failures != 1:
            found.append(f"{self.quiet_failures} requests failed in the quiet act, not one")
        if self.quiet_calls:
            found.append(f"one failure at little traffic called somebody: {', '.join(self.quiet_calls)}")
        if self.ungated_after_s is None:
            found.append("the rule without gates was silent too: the silence proves nothing")
        if self.page_after_s is None or self.page_after_s > PAGE_WITHIN_S:
            found.append(f"no page within {PAGE_WITHIN_S:g} s")
        if self.end_after_s is None:
            found.append(f"the page did not end by itself within {END_WITHIN_S:g} s")
        return found


class Traffic(threading.Thread):
    """Streams, one after the other, at ``rate`` per second as far as they come back in time. With ``other_every`` n,
    each n-th goes to ``/v1/completions``."""

    def __init__(self, port: int, key: str) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._key = key
        self._over = threading.Event()
        self.rate = 0.0
        self.other_every = 0
        self.sent = 0
        self.failed = 0

    def run(self) -> None:
        """Until :meth:`stop`."""
        while not self._over.wait(1.0 / self.rate if self.rate else 0.05):
            if self.rate:
                self.sent += 1
                if not self._send(self.other_every > 0 and self.sent % self.other_every == 0):
                    self.failed += 1

    def stop(self) -> None:
        """No more requests."""
        self._over.set()
        self.join()

    def _send(self, other: bool) -> bool:
        body: dict[str, Any] = {"model": MODEL, "stream": True, "max_tokens": 4}
        body |= {"prompt": "hello"} if other else {"messages": [{"role": "user", "content": "hello"}]}
        path = "/v1/completions" if other else "/v1/chat/completions"
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        try:
            headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status == 200 and b"error" not in answer.read()
        except OSError:
            return False
        finally:
            connection.close()


@dataclass(frozen=True)
class Stage:
    """A gateway in front of emulated workers, watched."""

    gateway_port: int
    admin_port: int
    worker_ports: Sequence[int]
    traffic: Traffic
    chain: AlarmChain
    sources: Sources

    def set_fault(self, kind: str | None, path: str = "") -> None:
        """All workers answer like this; ``None``: as they should."""
        faults = [] if kind is None else [{"kind": kind, "path": path}]
        for port in self.worker_ports:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/emulator/faults", json.dumps({"faults": faults}).encode(), method="POST",
                headers={"content-type": "application/json"},
            )  # fmt: skip
            urllib.request.urlopen(request, timeout=5).close()  # noqa: S310 - same


@contextmanager
def run_stage(folder: Path, first_port: int, **limits: Any) -> Iterator[Stage]:  # noqa: ANN401 - as in the file
    """Two workers, a gateway that promises what ``slo/objectives`` say, Prometheus, Alertmanager; all quiet."""
    sources = read_sources(ROOT / "slo")
    ports = choose_free_ports(first_port, 4)
    key = new_key()
    config = folder / "sluice.yaml"
    config.write_text(yaml.safe_dump(_build_config(sources, ports, key, limits), sort_keys=False))
    python = [sys.executable, "-m", "service"]
    with ExitStack() as stack:
        for port in ports[2:]:
            argv = [sys.executable, "-m", "service.emulator", "--port", str(port), "--profile", "instant"]
            log = folder / f"worker-{port}.log"
            worker = stack.enter_context(run_child(argv, log, cwd=ROOT))
            wait_until_answering(worker, f"http://127.0.0.1:{port}/health", log, _START_LIMIT_S, "")
        log = folder / "gateway.log"
        gateway = stack.enter_context(
            run_child([*python, "serve", "-c", str(config)], log, cwd=ROOT, env={"SLUICE_ADMIN_TOKEN": new_key()})
        )
        wait_until_answering(gateway, f"http://127.0.0.1:{ports[0]}/readyz", log, _START_LIMIT_S, "")
        rules = build_rules(sources, DIVISOR)
        del rules["rules/prober.yaml"]
        rules["rules/drill.yaml"] = _build_mutant(sources)
        chain = stack.enter_context(run_alarm_chain(folder, [f"127.0.0.1:{ports[1]}"], rules, first_port + 100))
        _await_figures(chain)
        traffic = Traffic(ports[0], key)
        traffic.start()
        stack.callback(traffic.stop)
        yield Stage(ports[0], ports[1], ports[2:], traffic, chain, sources)


def run_drill(stage: Stage, say: Callable[[str], None], quiet_s: float = 20.0, steady_s: float = 20.0) -> Outcome:
    """All three acts; ``say`` is told each line of the timeline."""
    outcome, began_at = Outcome(), time.monotonic()
    webhook, traffic = stage.chain.webhook, stage.traffic
    told = 0

    def note(text: str, at: float | None = None) -> None:
        moment = round((time.monotonic() if at is None else at) - began_at, 1)
        outcome.timeline.append((moment, text))
        say(f"{moment:7.1f} s  {text}")

    def watch(limit_s: float, until: Callable[[], Call | None]) -> Call | None:
        nonlocal told
        over_at = time.monotonic() + limit_s
        while True:
            for call in webhook.calls[told:]:
                told += 1
                note(f"{call.receiver} called: {call.alert} {call.tier}/{call.slo} {call.status}", call.at)
            found = until()
            if found is not None or time.monotonic() > over_at:
                return found
            time.sleep(0.1)

    def wait(length_s: float) -> None:
        watch(length_s, lambda: None)

    note("act 1: one request in 2 s")
    traffic.rate = 0.5
    wait(5.0)
    stage.set_fault("502")
    give_up_at = time.monotonic() + _START_LIMIT_S
    while not traffic.failed and time.monotonic() < give_up_at:
        time.sleep(0.05)
    stage.set_fault(None)
    failed_at = time.monotonic()
    note("one request has failed: its worker answered 502")
    wait(quiet_s)
    outcome.quiet_requests, outcome.quiet_failures = traffic.sent, traffic.failed
    mutant = webhook.find(MUTANT, "firing", failed_at)
    outcome.ungated_after_s = None if mutant is None else round(mutant.at - failed_at, 2)
    outcome.quiet_calls = sorted({call.alert for call in webhook.calls if call.alert != MUTANT})
    note(f"{traffic.sent} requests, {traffic.failed} failed; called beside the rule without gates: nobody"
         if not outcome.quiet_calls else f"called: {', '.join(outcome.quiet_calls)}")  # fmt: skip

    note("act 2: 20 requests a second")
    traffic.rate = 20.0
    wait(steady_s)
    note("all workers answer 502")
    stage.set_fault("502")
    broken_at = time.monotonic()
    page = watch(3 * PAGE_WITHIN_S, lambda: webhook.find(PAGE, "firing", broken_at, slo="availability"))
    outcome.page_after_s = None if page is None else round(page.at - broken_at, 2)
    wait(2.0)

    note("act 3: the workers answer again")
    stage.set_fault(None)
    mended_at = time.monotonic()
    end = watch(END_WITHIN_S, lambda: webhook.find(PAGE, "resolved", mended_at, slo="availability"))
    outcome.end_after_s = None if end is None else round(end.at - mended_at, 2)
    traffic.rate = 0.0
    return outcome


def _await_figures(chain: AlarmChain) -> None:
    """Until the gateway has been scraped twice, so that an increase can be formed."""
    give_up_at = time.monotonic() + _START_LIMIT_S
    while not chain.query("increase(sluice_slo_events_total[5s])"):
        if time.monotonic() > give_up_at:
            raise ChildError("Prometheus has no figures of the gateway")
        time.sleep(0.2)


def _build_config(sources: Sources, ports: Sequence[int], key: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    tiers: dict[str, dict[str, Any]] = {}
    for rank, tier in enumerate(sorted(sources.tiers, key=lambda one: one.best_effort)):
        availability, everything = tier.find(Indicator.AVAILABILITY), tier.find(Indicator.ALL)
        if availability is None or everything is None:
            tiers[tier.tier] = {"rank": rank, "best_effort": True}
        else:
            tiers[tier.tier] = {
                "rank": rank, "availability": availability.target, "attainment": everything.target,
                "ttft": dict(tier.ttft_targets_s), "tpot_s": tier.tpot_target_s,
            }  # fmt: skip
    return {
        "model": MODEL,
        "pool": {"discovery": "static", "workers": [f"http://127.0.0.1:{port}" for port in ports[2:]]},
        "tiers": tiers,
        "tenants": [{"id": "drill", "tier": TIER, "keys": [describe_key(key)]}],
        "listen": {"port": ports[0], "admin_port": ports[1]},
        "limits": {"drain_delay_s": 0.0, "grace_s": 5.0, **limits},
        "ledger": None,
    }


def _build_mutant(sources: Sources) -> str:
    """The page's rule without its gates."""
    plan = sources.plan.shrink(DIVISOR)
    (tier,) = (tier for tier in sources.tiers if tier.tier == TIER)
    objective = tier.find(Indicator.AVAILABILITY)
    if objective is None:
        raise ChildError(f"slo/objectives promises no availability in tier {TIER}")
    gates = Gates(bad_events=False, budget_share=False)
    rule = build_burn_alert(plan, tier, objective, Speed.FAST, Severity.PAGE, gates, DIVISOR)
    ungated = replace(rule, name=MUTANT, labels={"severity": "drill", "tier": TIER, "slo": "ungated"})
    return render_groups([RuleGroup("drill", 1, (ungated,))])


def main() -> int:
    """Command line; 0 if all is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first-port", type=int, default=22400, help="free ports are taken from here on")
    parser.add_argument("--report", type=Path, default=_REPORT)
    options = parser.parse_args()
    interrupt_on_sigterm()
    print("about two minutes; an hour of the rules is a minute here", flush=True)
    try:
        with tempfile.TemporaryDirectory() as folder, run_stage(Path(folder), options.first_port) as stage:
            outcome = run_drill(stage, lambda line: print(line, flush=True))
    except ChildError as error:
        print(f"drill: {error}", file=sys.stderr)
        return 1
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(json.dumps({**asdict(outcome), "faults": outcome.faults()}, indent=1) + "\n")
    rows = [
        ("one failure at little traffic", "silent" if not outcome.quiet_calls else "CALLED"),
        ("the same without the gates", _tell(outcome.ungated_after_s)),
        (f"outage to page (at most {PAGE_WITHIN_S:g} s)", _tell(outcome.page_after_s)),
        ("mended to end of page", _tell(outcome.end_after_s)),
    ]
    for name, value in rows:
        print(f"{name:<36}{value}")
    for fault in outcome.faults():
        print(f"FAULT: {fault}")
    return 1 if outcome.faults() else 0


def _tell(length_s: float | None) -> str:
    return "never" if length_s is None else f"after {length_s:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
