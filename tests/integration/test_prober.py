"""The prober against real answers: a gateway's, and an emulated worker's with every kind of fault."""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from dataclasses import replace

import httpx
import pytest

from service.cli.prober import name_key
from service.emulator.config import EmulatorConfig
from service.emulator.server import start_worker
from service.prober.probe import ProbeTarget, send_probe
from service.runtime.clock import MonotonicClock
from tests.support.raw_client import RawClient
from tests.support.service_process import MODEL, find_ports, hash_of, run_gateway, run_process, run_worker
from tests.support.telemetry import read_samples, value_of
from tests.support.tls_front import make_certificate, run_tls_front

pytestmark = pytest.mark.integration
KEY = "sk-sluice-ProbeProbeProbeProbeProbeProbePr"
PRIORITY = {"rank": 0, "availability": 0.999, "attainment": 0.99, "ttft": {4096: 1.0}, "tpot_s": 0.025}


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (None, ""),
        ("503", "status 503"),
        ("error-event;after=1", "an error event"),
        ("cut;after=3", "RemoteProtocolError"),
        ("die;after=3", "ReadError"),
        ("abort-finish", "no token"),
        ("stall-first", "not over after 0.5 s"),
        ("stall;after=2", "not over after 0.5 s"),
        ("garbage", "RemoteProtocolError"),
    ],
)
async def test_each_fault_is_a_bad_probe(fault, told):
    async with await start_worker(EmulatorConfig(port=0, profile="instant")) as worker:
        if fault is not None:
            kind, _, after = fault.partition(";after=")
            faults = [{"kind": kind, "after": int(after or 0)}]
            async with await RawClient.connect(worker.port) as one:
                assert (await one.ask("POST", "/emulator/faults", {"faults": faults})).status == 200
        target = ProbeTarget("priority", f"http://127.0.0.1:{worker.port}", EmulatorConfig().model, "k", 5.0, 0.5)
        result = await send_probe(target, MonotonicClock().now)
    assert result.fault.startswith(told) if told else result.fault == ""
    assert (result.ttft_s is None) is (fault in ("503", "abort-finish", "stall-first", "garbage"))


async def test_over_tls_only_a_certificate_of_whom_it_trusts_will_do(tmp_path):
    (port,) = find_ports(1)
    async with await start_worker(EmulatorConfig(port=0, profile="instant")) as worker:
        make_certificate(tmp_path, "ec", "DNS:localhost", "gateway")
        with run_tls_front(port, worker.port, tmp_path):
            target = ProbeTarget("priority", f"https://localhost:{port}", EmulatorConfig().model, "k", 5.0, 5.0)
            refused = await send_probe(target, MonotonicClock().now)
            trusting = replace(target, trust=ssl.create_default_context(cafile=str(tmp_path / "cert.pem")))
            good = await send_probe(trusting, MonotonicClock().now)
    assert refused.fault.startswith("ConnectError")
    assert good.fault == ""


async def test_nobody_listens():
    (port,) = find_ports(1)
    target = ProbeTarget("priority", f"http://127.0.0.1:{port}", "m", "k", None, 5.0)
    assert (await send_probe(target, MonotonicClock().now)).fault.startswith("ConnectError")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prober")
    tenants = [{"id": "prober", "tier": "priority", "synthetic": True, "keys": [hash_of(KEY)]}]
    with (
        run_worker(folder, "instant") as worker,
        run_gateway(folder, [worker], tiers={"priority": PRIORITY}, tenants=tenants) as gateway,
    ):
        yield gateway


def sluice(*arguments, key=KEY):
    environment = {**os.environ, name_key("priority"): key}
    argv = [sys.executable, "-m", "service", "prober", "--model", MODEL, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, timeout=60)


def test_once_says_good_and_the_gateway_excludes_it(gateway):
    done = sluice("--url", gateway.url, "--once", "--json")
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)
    assert told["tier"] == "priority"
    assert told["fault"] == ""
    assert told["ttft_s"] > 0
    samples = read_samples(httpx.get(f"{gateway.admin_url}/metrics", trust_env=False, timeout=10).content)
    labels = {"tier": "priority", "model": MODEL, "slo": "availability"}
    assert value_of(samples, "sluice_slo_events_total", **labels, result="excluded") >= 1
    assert value_of(samples, "sluice_slo_events_total", **labels, result="good") == 0


def test_once_with_a_key_that_is_not_known_is_bad(gateway):
    done = sluice("--url", f"{gateway.url}/", "--once", key="sk-sluice-WrongWrongWrongWrongWrongWrongWron")
    assert done.returncode == 1
    assert "priority    status 401" in done.stdout


def test_it_goes_on_counts_on_a_port_of_its_own_and_ends_at_sigterm(gateway, tmp_path):
    (port,) = find_ports(1)
    argv = [sys.executable, "-m", "service", "prober", "--model", MODEL, "--url", gateway.url, "--interval-s", "1"]
    environment = {name_key("priority"): KEY}
    with run_process([*argv, "--port", str(port)], tmp_path / "prober.log", port, environment) as prober:
        deadline = time.monotonic() + 30
        good = 0
        while not good or good < 2:
            assert time.monotonic() < deadline, prober.text()
            try:
                samples = read_samples(httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).content)
            except httpx.HTTPError:
                time.sleep(0.05)
                continue
            good = value_of(samples, "sluice_probe_requests_total", tier="priority", result="good")
            time.sleep(0.1)
        assert value_of(samples, "sluice_probe_requests_total", tier="priority", result="bad") == 0
        assert value_of(samples, "sluice_probe_ttft_seconds_count", tier="priority") == good
        assert KEY not in prober.text()
        again = sluice("--url", gateway.url, "--port", str(port))
        assert again.returncode == 1
        assert "cannot be listened on" in again.stderr
        prober.signal(signal.SIGTERM)
        assert prober.process.wait(15) == 0


def test_a_gateway_that_fails_is_counted_and_told_once(tmp_path):
    (port, nobody) = find_ports(2)
    argv = [sys.executable, "-m", "service", "prober", "--model", MODEL, "--url", f"http://127.0.0.1:{nobody}"]
    environment = {name_key("priority"): KEY}
    argv += ["--interval-s", "1", "--port", str(port)]
    with run_process(argv, tmp_path / "prober.log", port, environment) as prober:
        deadline = time.monotonic() + 30
        bad = 0
        while bad < 2:
            assert time.monotonic() < deadline, prober.text()
            time.sleep(0.1)
            try:
                samples = read_samples(httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).content)
            except httpx.HTTPError:
                continue
            bad = value_of(samples, "sluice_probe_requests_total", tier="priority", result="bad")
        prober.signal(signal.SIGINT)
        assert prober.process.wait(15) == 0
        assert prober.text().count("ConnectError") == 1
