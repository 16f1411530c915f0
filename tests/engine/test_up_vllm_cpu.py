"""``sluice up`` with a real vLLM on the CPU: the second thing anybody tries."""

import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.launch.cpu_engine import CpuEngine
from tests.support.service_process import (
    Process,
    find_ports,
    is_alive,
    list_children,
    list_group,
    read_stream,
    run_process,
)

READY_WITHIN_S = 150.0
GONE_WITHIN_S = 60.0


@pytest.fixture
def service(cpu_engine: CpuEngine, tmp_path: Path) -> Iterator[Process]:
    assert cpu_engine.is_built
    port, admin_port = find_ports(2)
    argv = [sys.executable, "-m", "service", "up", "--port", str(port), "--admin-port", str(admin_port)]
    environment = {"ENGINE": "vllm-cpu", "WORKERS": "1", "XDG_RUNTIME_DIR": str(tmp_path), "SLUICE_ADMIN_TOKEN": ""}
    with run_process([*argv, "--dir", str(tmp_path / "up")], tmp_path / "up.log", port, environment) as up:
        until = time.monotonic() + READY_WITHIN_S
        while "Ctrl-C drains" not in up.text():
            assert up.process.poll() is None, up.text()
            assert time.monotonic() < until, up.text()
            time.sleep(0.1)
        yield up


def test_the_printed_key_and_model_work_and_ctrl_c_ends_all(service: Process) -> None:
    said = service.text()
    assert "1 vllm-cpu worker" in said
    found = re.search(r"^ready: (\S+), model ([^,]+),", said, re.MULTILINE)
    key = re.search(r"key for tier priority: +(sk-sluice-\S+)", said)
    assert found is not None
    assert key is not None
    family = [pid for child in list_children(service.process.pid) for pid in list_group(child)]
    assert len(family) >= 3, "the gateway, the server and its engine"
    body = {"model": found[2], "max_tokens": 8, "messages": [{"role": "user", "content": "Why do rivers meander?"}]}
    with httpx.Client(
        base_url=found[1], headers={"authorization": f"Bearer {key[1]}"}, trust_env=False, timeout=60
    ) as client:
        whole = client.post("/chat/completions", json=body)
        assert whole.status_code == 200, whole.text
        assert whole.json()["usage"]["completion_tokens"] > 0
        streamed = client.post("/chat/completions", json={**body, "stream": True})
        assert streamed.headers["x-sluice-tier"] == "priority"
        assert streamed.text.endswith("data: [DONE]\n\n")
        events = read_stream(streamed.text)
        assert any(choice["finish_reason"] for event in events for choice in event["choices"])
    service.signal(signal.SIGINT)
    assert service.process.wait(GONE_WITHIN_S) == 0, service.text()
    until = time.monotonic() + 10
    while alive := [pid for pid in family if is_alive(pid)]:
        assert time.monotonic() < until, f"still alive: {alive}"
        time.sleep(0.05)
