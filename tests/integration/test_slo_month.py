"""A month of figures in a real Prometheus: the budget of 30 days is the sum of its hours, weighted by events."""

import math
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from loadtests.live.alarm_chain import AlarmChain, Webhook, find_missing_programs
from loadtests.live.child import run_child, wait_until_answering
from tests.support.service_process import find_ports

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(find_missing_programs()) and shutil.which("promtool") is None, reason="no Prometheus"),
]
RULES = Path(__file__).parents[2] / "slo" / "rules"
HOUR_S, STEP_S, HOURS = 3600, 300, 31 * 24
LABELS = 'tier="priority",slo="availability",model="m"'


def events_of(hour):
    """Valid and bad events of one hour: quiet nights fail more, so that a mean of ratios would be wrong."""
    valid = 1000 + int(900 * math.sin(hour * math.pi / 12))
    return valid, (valid // 20 if valid < 200 else 0)


@pytest.fixture(scope="module")
def month(tmp_path_factory):
    """A Prometheus with 31 days of recorded hourly sums up to the last full hour."""
    folder = tmp_path_factory.mktemp("month")
    end = int(time.time()) // HOUR_S * HOUR_S
    lines = []
    for place, name in enumerate(("slo:events:increase1h", "slo:bad:increase1h")):
        lines.append(f"# TYPE {name} gauge")
        for number in range(HOURS * HOUR_S // STEP_S + 1):
            at = end - HOURS * HOUR_S + number * STEP_S
            lines.append(f"{name}{{{LABELS}}} {events_of(at // HOUR_S)[place]} {at}")
    (folder / "month.om").write_text("\n".join([*lines, "# EOF", ""]))
    made = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=744h"]
    subprocess.run([*made, folder / "month.om", folder / "tsdb"], check=True, capture_output=True, timeout=60)
    (folder / "prometheus.yml").write_text("{}\n")
    (port,) = find_ports(1)
    argv = [
        "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=40d", "--log.level=warn",
    ]  # fmt: skip
    with run_child(argv, folder / "log") as process:
        wait_until_answering(process, f"http://127.0.0.1:{port}/-/ready", folder / "log", 30.0, "")
        yield AlarmChain(Webhook(), f"http://127.0.0.1:{port}"), end


def expression_of(name):
    groups = yaml.safe_load((RULES / "recording.yaml").read_text())["groups"]
    (rule,) = [rule for group in groups for rule in group["rules"] if rule.get("record") == name]
    return rule["expr"]


def ask(month, expression):
    """A minute past the hour: at the full hour a range has one more hour before Prometheus 3 than since."""
    chain, end = month
    (value,) = chain.query(expression.replace("1h]", f"1h] @ {end + 60}")).values()
    return value


def test_thirty_days_are_the_sum_of_their_hours(month):
    _, end = month
    hours = [events_of(hour) for hour in range(end // HOUR_S - 30 * 24 + 1, end // HOUR_S + 1)]
    exact = [sum(hour[place] for hour in hours) for place in (0, 1)]
    for place, name in enumerate(("slo:events:increase30d", "slo:bad:increase30d")):
        assert ask(month, expression_of(name).partition(" or ")[0]) == exact[place]


def test_the_ratio_is_of_events_and_a_mean_of_hourly_ratios_would_be_another(month):
    events = "sum_over_time(slo:events:increase1h[30d:1h])"
    bad = "sum_over_time(slo:bad:increase1h[30d:1h])"
    ratio = ask(month, bad) / ask(month, events)
    mean = ask(month, "avg_over_time((slo:bad:increase1h / slo:events:increase1h)[30d:1h])")
    assert 0.0005 < ratio < 0.001, "within an objective of 99.9 %"
    assert mean > 3 * ratio, "a mean would say that it is missed"
