"""What can only be seen on a worker of one's own: speculation, the valve, the end of its life.

One test, because starting a worker takes half a minute and its last step is the worker's last.
"""

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.launch.cpu_engine import CpuEngine, build_cpu_worker_command
from service.launch.fallback import find_fallbacks, parse_engine_report
from service.launch.profile import WorkerProfile
from service.launch.profiles import Overrides, apply_overrides, build_cpu_small_profile
from tests.support.engine_process import EngineProcess, find_free_port, run_worker

VALVE = 8
ASKED = 24
HEARD_WITHIN_S = 10.0


def chat(model_name: str, max_tokens: int, **fields: object) -> dict[str, object]:
    message = {"role": "user", "content": "Say something."}
    return {"model": model_name, "messages": [message], "max_tokens": max_tokens, "ignore_eos": True, **fields}


def sum_of(client: httpx.Client, family: str, **labels: str) -> float:
    families = {found.name: found for found in text_string_to_metric_families(client.get("/metrics").text)}
    return sum(
        sample.value
        for sample in families[family].samples
        if sample.name.endswith("_total") and labels.items() <= sample.labels.items()
    )


def check_speculation(client: httpx.Client, profile: WorkerProfile, model_name: str) -> None:
    # Greedy output of random weights falls into a loop before long, and then looking words up proposes something.
    client.post("/v1/chat/completions", json=chat(model_name, 1000, temperature=0)).raise_for_status()
    assert find_fallbacks(profile, parse_engine_report(client.get("/metrics").text)) == ()
    drafted = sum_of(client, "vllm:spec_decode_num_draft_tokens")
    assert drafted >= sum_of(client, "vllm:spec_decode_num_drafts") > 0
    assert drafted >= sum_of(client, "vllm:spec_decode_num_accepted_tokens")


def check_valve(client: httpx.Client, model_name: str) -> None:
    together = threading.Barrier(ASKED)

    def ask(_: int) -> httpx.Response:
        together.wait(20)
        # so long that none ends before the last has been read by a server on a busy machine
        return client.post("/v1/chat/completions", json=chat(model_name, 1000))

    with ThreadPoolExecutor(ASKED) as threads:
        answers = list(threads.map(ask, range(ASKED)))
    refused = [answer for answer in answers if answer.status_code != 200]
    assert len(refused) == ASKED - VALVE
    for answer in refused:
        error = answer.json()["error"]
        assert (answer.status_code, error["type"], error["code"]) == (503, "Service Unavailable", 503)
        assert "retry-after" not in answer.headers
    assert sum_of(client, "vllm:admission_rejections", reason="max_num_queued_reqs") == len(refused)


def looks_healthy_and_fails(url: str, model_name: str) -> bool:
    """Whether a worker answers as one that drains. In the moment it begins to, connections may be cut off."""
    try:
        late = httpx.post(f"{url}/v1/chat/completions", json=chat(model_name, 1), timeout=20)
        return late.status_code == 500 and httpx.get(f"{url}/health", timeout=20).status_code == 200
    except httpx.TransportError:
        return False


def check_shutdown(client: httpx.Client, worker: EngineProcess, model_name: str) -> None:
    body = chat(model_name, 1500, stream=True)
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)
        os.kill(worker.pid, signal.SIGTERM)
        # Draining does not show: the worker looks healthy and fails what comes, once it has heard the signal.
        give_up_at = time.monotonic() + HEARD_WITHIN_S
        while not looks_healthy_and_fails(worker.url, model_name):
            assert time.monotonic() < give_up_at, "it does not drain, or shows it"
            time.sleep(0.05)
        events = [line.removeprefix("data: ") for line in lines if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"


@pytest.mark.timeout(240)
def test_life_of_a_speculating_worker(cpu_engine: CpuEngine, model_name: str, tmp_path: Path) -> None:
    profile = apply_overrides(
        build_cpu_small_profile(cpu_engine.model_dir),
        Overrides(speculation="ngram", running_requests=4, in_flight_requests=VALVE),
    )
    port = find_free_port()
    command = build_cpu_worker_command(cpu_engine, port, profile=profile)
    with (
        run_worker(command, f"http://127.0.0.1:{port}", tmp_path / "vllm.log") as worker,
        httpx.Client(base_url=worker.url, timeout=60, limits=httpx.Limits(max_connections=ASKED + 4)) as client,
    ):
        check_speculation(client, profile, model_name)
        check_valve(client, model_name)
        check_shutdown(client, worker, model_name)
