"""The load tests' own tools on real sockets: a tool that cannot fail measures nothing."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import uvloop

from loadtests.live.child import ChildError, choose_free_ports, run_child, wait_until_answering
from loadtests.live.client import Load, Target, run_load
from loadtests.live.peers import REPOSITORY, run_workers
from loadtests.live.process_cost import fetch_cpu_s, fetch_descriptors, fetch_family, fetch_rss_kib
from tests.support.service_process import is_alive

pytestmark = pytest.mark.integration

FIRST_PORT = 23500
JSON_LOAD = Load(concurrency=4, requests=200, stream=False, tokens=4, pause_ms=0)
STREAM_LOAD = Load(concurrency=5, requests=20, stream=True, tokens=10, pause_ms=1)


@pytest.fixture
def backend(tmp_path):
    ports = choose_free_ports(FIRST_PORT, 2)
    with run_workers(ports[0], 2, tmp_path) as pid:
        yield Target(port=ports[0], pids=(pid,))


def fetch(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def fetch_metrics(backend):
    return fetch(backend.port, "/metrics")[1]


def wait_for(condition, limit_s=10.0):
    give_up_at = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < give_up_at, "it did not come to that in time"
        time.sleep(0.02)


def await_death(pids):
    """Signals are sent when the tool has ended; the kernel may still be at a grandchild that got one."""
    wait_for(lambda: not any(is_alive(pid) for pid in pids))


def test_each_worker_answers_control_calls(backend):
    for port in (backend.port, backend.port + 1):
        assert fetch(port, "/health")[0] == 200
        assert "max_model_len" in fetch(port, "/v1/models")[1]
        assert "vllm:num_requests_running" in fetch(port, "/metrics")[1]
        assert fetch(port, "/other")[0] == 404


def test_plain_answers_are_measured(backend):
    result = uvloop.run(run_load(backend, JSON_LOAD))
    assert result.errors == {}
    assert result.chunks == 0
    assert 1.0 < result.cpu_us_per_request < 5000.0
    assert 0.0 < result.ttfb_ms["p50"] <= result.e2e_ms["p50"]


def test_streams_are_measured_to_the_last_chunk(backend):
    result = uvloop.run(run_load(backend, STREAM_LOAD))
    assert result.errors == {}
    assert result.chunks == STREAM_LOAD.requests * (STREAM_LOAD.tokens + 1)
    assert result.e2e_ms["p50"] >= STREAM_LOAD.tokens * STREAM_LOAD.pause_ms
    assert result.client["lag_ms"]["max"] is not None


def test_kernel_clock_agrees_with_the_ticks_of_proc(backend):
    uvloop.run(run_load(backend, JSON_LOAD))
    (pid,) = backend.pids
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    assert fetch_cpu_s([pid]) == pytest.approx(ticks_s, abs=0.05)


def test_failures_are_told_by_kind(backend):
    wrong_path = Target(port=backend.port, path="/v1/other")
    assert uvloop.run(run_load(wrong_path, JSON_LOAD)).errors == {"status 404": JSON_LOAD.requests}
    (closed_port,) = choose_free_ports(FIRST_PORT + 100, 1)
    errors = uvloop.run(run_load(Target(port=closed_port), JSON_LOAD)).errors
    assert sum(errors.values()) == JSON_LOAD.requests
    assert all(kind.startswith("connect: ") for kind in errors)


def test_an_answer_cut_off_is_a_failure(tmp_path):
    port = choose_free_ports(FIRST_PORT, 1)[0]
    script = (
        "import socket\n"
        f"s = socket.create_server(('127.0.0.1', {port}))\n"
        "while True:\n"
        "    c, _ = s.accept()\n"
        "    c.recv(65536)\n"
        "    c.sendall(b'HTTP/1.1 200 OK\\r\\ncontent-length: 99\\r\\n\\r\\n{')\n"
        "    c.close()\n"
    )
    with run_child([sys.executable, "-c", script], tmp_path / "log") as process:
        wait_until_answering(process, f"http://127.0.0.1:{port}/", tmp_path / "log", 10, "key")
        load = Load(concurrency=1, requests=3, stream=False, tokens=1, pause_ms=0)
        assert uvloop.run(run_load(Target(port=port), load)).errors == {"connection lost": 3}


def test_a_reader_that_does_not_read_costs_the_worker_nothing(backend):
    pids = list(backend.pids)
    time.sleep(0.2)  # the look that waited for the worker has left
    before_kib, descriptors = fetch_rss_kib(pids), fetch_descriptors(pids)
    body = b'{"stream": true, "seed": -1}'
    with socket.create_connection(("127.0.0.1", backend.port)) as reader:
        reader.sendall(b"POST /v1/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        time.sleep(0.5)
        assert fetch_rss_kib(pids) - before_kib < 2048
        received = 0
        while received < 32 * 2**20:  # more than all socket buffers hold: the flood goes on when it is read
            received += len(reader.recv(2**20))
        assert 'vllm:num_requests_running{engine="0",model_name="MiniMax-M3.1-Flash"} 1.0' in fetch_metrics(backend)
    wait_for(lambda: fetch_descriptors(pids) == descriptors)
    assert "} 1.0" not in fetch_metrics(backend)


def test_children_of_a_child_are_stopped_with_it(tmp_path):
    script = "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); print('up', flush=True); time.sleep(60)"
    with run_child([sys.executable, "-c", script], tmp_path / "log") as process:
        wait_for(lambda: "up" in (tmp_path / "log").read_text())
        family = fetch_family([process.pid])
        assert len(family) == 2
    await_death(family)


def test_a_child_that_cannot_start_says_why(tmp_path):
    with pytest.raises(ChildError, match="No such file"), run_child(["/no/such/program"], tmp_path / "log"):
        pass
    log = tmp_path / "log"
    argv = [sys.executable, "-c", "raise SystemExit('no luck')"]
    with run_child(argv, log) as process, pytest.raises(ChildError, match="no luck"):
        wait_until_answering(process, "http://127.0.0.1:1/", log, 10, "key")


def run_tool(module, *options):
    argv = [sys.executable, "-m", f"loadtests.live.{module}", *options]
    return subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=100, check=False)


def test_overhead_writes_its_three_reports(tmp_path):
    done = run_tool("overhead", "--peers", "direct", "--quick", "--reports", str(tmp_path), "--first-port", "23520")
    assert done.returncode == 0, done.stderr
    assert "direct" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["overhead.json", "overhead.md", "overhead.png"]
    report = json.loads((tmp_path / "overhead.json").read_text())
    assert len(report["samples"]) == 4
    assert all(not sample["result"]["errors"] for sample in report["samples"])


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_overhead_stops_what_it_started(tmp_path, sign):
    argv = [sys.executable, "-m", "loadtests.live.overhead", "--peers", "direct", "--first-port", "23540"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*argv, "--reports", str(tmp_path)], cwd=REPOSITORY, stdout=log, stderr=log)
        wait_for(lambda: len(fetch_family([process.pid])) >= 3, 30)
        family = fetch_family([process.pid])
        process.send_signal(sign)
        assert process.wait(30) == 130
    assert len(family) >= 3
    await_death(family)


def test_streams_hold_on_a_gateway_that_runs_already(backend, tmp_path):
    done = run_tool(
        *("streams", "--streams", "40", "--open-s", "0.5", "--hold-s", "1", "--pause-ms", "100"),
        *("--port", str(backend.port), "--pid", str(backend.pids[0]), "--reports", str(tmp_path)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "streams.json").read_text())["figures"]
    assert (figures["most_open"], figures["errors"]) == (40, {})
    assert figures["descriptors_most"] >= figures["descriptors_before"] + 40


def test_slow_readers_find_a_gateway_without_back_pressure(tmp_path):
    done = run_tool(
        *("slow_reader", "--readers", "4", "--hold-s", "2", "--streams", "2", "--settle-s", "3"),
        *("--gateway-cmd", f"{sys.executable} -m tests.support.leaky_gateway {{port}} {{workers}}"),
        *("--first-port", "23560", "--reports", str(tmp_path)),
    )
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads((tmp_path / "slow_reader.json").read_text())
    broken = [check["name"] for check in report["checks"] if check["holds"] is False]
    assert "growth per slow reader" in broken
    assert report["figures"]["readers_flooded"] == 4
