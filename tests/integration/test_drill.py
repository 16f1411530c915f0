"""The alarm drill in its short form, and the gateway's own burn windows beside a real Prometheus."""

import os
import threading
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadtests.live.alarm_chain import find_missing_programs
from loadtests.live.drill import DIVISOR, PAGE_WITHIN_S, TIER, run_drill, run_stage
from service.slo.burnrate import BurnRates
from service.slo.objective import Indicator
from service.slo.window import write_duration

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        bool(find_missing_programs()) and os.environ.get("CI") != "true", reason="Prometheus or Alertmanager is missing"
    ),
]


def test_a_page_comes_in_time_not_for_one_failure_and_ends_by_itself(tmp_path):
    lines = []
    with run_stage(tmp_path, 22200) as stage:
        outcome = run_drill(stage, lines.append, quiet_s=10.0, steady_s=5.0)
    assert outcome.faults() == [], "\n".join(lines)
    assert outcome.page_after_s <= PAGE_WITHIN_S
    moments = {text: at for at, text in reversed(outcome.timeline)}
    ended = moments["pager called: SluiceBudgetBurnFast priority/availability resolved"]
    ticket = moments.get("tickets called: SluiceBudgetBurnSlow priority/availability firing", ended)
    assert ticket >= ended - 2.0, "the page keeps back the ticket for the same budget\n" + "\n".join(lines)


class Watching(threading.Thread):
    """Reads a gateway's counters four times a second into burn windows in quick motion."""

    def __init__(self, stage, plan):
        super().__init__(daemon=True)
        self._url = f"http://127.0.0.1:{stage.admin_port}/metrics"
        self._over = threading.Event()
        self.rates = BurnRates(plan, stage.sources.tiers, time.monotonic())

    def run(self):
        while not self._over.wait(0.25):
            self.rates.observe(time.monotonic(), read_counts(self._url))

    def stop(self):
        self._over.set()
        self.join()


def read_counts(url):
    """Bad and valid events so far."""
    counts = {}
    for family in text_string_to_metric_families(httpx.get(url, trust_env=False, timeout=5).text):
        for sample in family.samples if family.name == "sluice_slo_events" else ():
            key = (sample.labels["tier"], sample.labels["slo"])
            bad, valid = counts.get(key, (0, 0))
            result, count = sample.labels["result"], int(sample.value)
            counts[key] = (bad + count * (result == "bad"), valid + count * (result != "excluded"))
    return counts


def test_the_gateways_own_burn_rates_agree_with_prometheus_within_a_hundredth(tmp_path):
    breaker = {"failures_to_open": 1_000_000}
    with run_stage(tmp_path, 22200, breaker=breaker) as stage:
        plan = stage.sources.plan.shrink(DIVISOR)
        (tier,) = (one for one in stage.sources.tiers if one.tier == TIER)
        watching = Watching(stage, plan)
        watching.start()
        try:
            stage.set_fault("502", path="/v1/completions")
            stage.traffic.other_every, stage.traffic.rate = 2, 60.0
            time.sleep(66)
            own = {window_s: watching.rates.find_burn_rate(tier.find(Indicator.AVAILABILITY), window_s)
                   for window_s in plan.windows_s}  # fmt: skip
            theirs = {
                window_s: stage.chain.query(
                    f'slo:bad:ratio{write_duration(window_s)}{{tier="{TIER}",slo="availability"}}'
                )
                for window_s in plan.windows_s
            }
        finally:
            watching.stop()
    assert stage.traffic.failed > 500
    budget = tier.find(Indicator.AVAILABILITY).budget_ratio
    for window_s in plan.windows_s:
        (ratio,) = theirs[window_s].values()
        assert own[window_s] == pytest.approx(ratio / budget, rel=0.01), write_duration(window_s)
    assert own[60] == pytest.approx(0.5 / budget, rel=0.02)
