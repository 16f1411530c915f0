"""The loop on one machine with a real Prometheus, time scaled by 75: load triples and falls, workers come and go."""

import asyncio
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.support.service_process import TOKEN, Process, find_ports, run_process

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
]

STEP_S = 0.4
"""30 s in production: half an hour of holding back is 24 s here, five minutes between two that go are 4 s."""

ANSWER_TOKENS = 64
PHASES = ((6.0, 10.0), (18.0, 30.0), (3.0, 45.0))
"""Requests a second, for so many seconds. A worker of eight slots serves some twelve a second."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Process]:
    port, admin_port = find_ports(2)
    argv = [
        sys.executable, "-m", "service", "up", "--port", str(port), "--admin-port", str(admin_port), "--workers", "1",
        "--autoscale", "--most", "5", "--cold-start-s", "4", "--step-s", str(STEP_S), "--worker-options",
        "--max-num-seqs 8", "--dir", str(tmp_path / "up"),
    ]  # fmt: skip
    with run_process(argv, tmp_path / "up.log", port, {"SLUICE_ADMIN_TOKEN": TOKEN}) as process:
        process.admin_port = admin_port
        until = time.monotonic() + 60.0
        while "ready:" not in process.text():
            assert time.monotonic() < until, process.text()
            assert process.process.poll() is None, process.text()
            time.sleep(0.1)
        yield process


def read_key(service: Process) -> str:
    found = re.search(r"key for tier default: +(\S+)", service.text())
    assert found is not None
    return found.group(1)


async def ask(client: httpx.AsyncClient, service: Process, key: str, endings: Counter[str]) -> None:
    body = {
        "model": "MiniMax-M3.1-Flash", "max_tokens": ANSWER_TOKENS, "stream": True,
        "messages": [{"role": "user", "content": "Why do rivers meander?"}],
    }  # fmt: skip
    url = f"{service.url}/v1/chat/completions"
    answer = await client.post(url, headers={"authorization": f"Bearer {key}"}, json=body, timeout=60.0)
    whole = answer.is_success and "[DONE]" in answer.text and '"error"' not in answer.text
    endings["whole" if whole else f"{answer.status_code}"] += 1


def read_metrics(text: str, name: str) -> dict[str, float]:
    return {labels: float(value) for labels, value in re.findall(rf"^{name}\{{(.*?)\}} (\S+)$", text, re.MULTILINE)}


async def play(service: Process) -> tuple[Counter[str], list[tuple[float, int]], str]:
    """Endings of all requests, workers ready over the three phases, and the last figures."""
    key, endings, seen = read_key(service), Counter(), []  # type: ignore[var-annotated]
    tasks, text = [], ""
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=400), trust_env=False) as client:
        for rate, length_s in PHASES:
            begin = time.monotonic()
            while (elapsed := time.monotonic() - begin) < length_s:
                tasks.append(asyncio.ensure_future(ask(client, service, key, endings)))
                if len(tasks) % int(rate) == 0:
                    with suppress(httpx.HTTPError):
                        text = (await client.get(f"{service.admin_url}/metrics")).text
                        seen.append((rate, int(read_metrics(text, "sluice_workers").get('state="ready"', 0))))
                due = begin + (int(elapsed * rate) + 1) / rate
                await asyncio.sleep(max(due - time.monotonic(), 0.0))
        await asyncio.gather(*tasks)
    return endings, seen, text


def test_load_triples_and_falls_and_no_request_is_lost(service: Process) -> None:
    endings, seen, text = asyncio.run(play(service))
    most = max(ready for rate, ready in seen if rate == PHASES[1][0])
    last = seen[-1][1]
    log = service.text()
    assert set(endings) == {"whole"}, (endings, log)
    assert most >= 3, log
    assert last < most, (seen, log)
    assert "gets no new work" in log
    assert "was empty and is gone" in log
    events = read_metrics(text, "sluice_slo_events_total")
    counts = {result: sum(value for labels, value in events.items() if 'slo="all"' in labels and result in labels)
              for result in ('result="good"', 'result="bad"')}  # fmt: skip
    missed = counts['result="bad"'] / sum(counts.values())
    assert missed < 14.4 * 0.01, (counts, seen)  # less than what pages for a 99 % objective


def test_without_prometheus_a_single_decision_fails_and_says_why() -> None:
    (port,) = find_ports(1)
    argv = [sys.executable, "-m", "service", "scaler", "-c", "deploy/sluice.example.yaml", "--once"]
    done = subprocess.run(
        [*argv, "--prometheus", f"http://127.0.0.1:{port}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"127.0.0.1:{port}" in done.stderr
