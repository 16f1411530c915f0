"""``sluice up``: it starts as a whole, its words are true, and nothing of it is left behind, however it ends."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.service_process import Process, find_ports, is_alive, list_children, read_stream, run_process

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def run_up(folder: Path, *more: str):
    port, admin_port = find_ports(2)
    argv = [sys.executable, "-m", "service", "up", "--port", str(port), "--admin-port", str(admin_port)]
    argv += ["--dir", str(folder / "up"), *more]
    environment = {"XDG_RUNTIME_DIR": str(folder), "SLUICE_ADMIN_TOKEN": ""}
    with run_process(argv, folder / "up.log", port, environment) as up:
        up.admin_port = admin_port
        await_text(up, "Ctrl-C drains")
        yield up


def await_text(up: Process, text: str, patience_s: float = 90.0) -> None:
    until = time.monotonic() + patience_s
    while text not in up.text():
        assert up.process.poll() is None, up.text()
        assert time.monotonic() < until, up.text()
        time.sleep(0.05)


def await_death(pids: list[int], patience_s: float = 20.0) -> None:
    until = time.monotonic() + patience_s
    while alive := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < until, f"still alive: {alive}"
        time.sleep(0.05)


def find_child(up: Process, words: str) -> int:
    for pid in list_children(up.process.pid):
        if words in Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "):
            return pid
    raise AssertionError(f"no child runs {words!r}")


def test_the_printed_lines_work_and_ctrl_c_ends_all(tmp_path):
    with run_up(tmp_path) as up:
        children = list_children(up.process.pid)
        assert len(children) == 3
        (line,) = [line for line in up.text().splitlines() if line.startswith("curl ")]
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30, check=True)
        events = read_stream(done.stdout)
        assert done.stdout.endswith("data: [DONE]\n\n")
        assert any(choice["delta"].get("content") for event in events for choice in event["choices"])
        keys = re.findall(r"key for tier (\w+): +(sk-sluice-\S+)", up.text())
        assert [tier for tier, _ in keys] == ["priority", "default", "flex"]
        for tier, key in keys:
            other = re.sub(r"sk-sluice-[\w-]+", key, line) + " -o /dev/null -D -"
            head = subprocess.run(["bash", "-c", other], capture_output=True, text=True, timeout=30, check=True).stdout
            assert f"x-sluice-tier: {tier}" in head
        url, path = re.search(r"admin: (\S+), bearer token in (\S+)", up.text()).groups()
        assert json.loads(up.admin("GET", url.partition(str(up.admin_port))[2], Path(path).read_text()).text)["ready"]
        written = [file.read_bytes() for file in (tmp_path / "up").rglob("*") if file.is_file()]
        assert all(key.encode() not in data for _, key in keys for data in written)
        up.signal(signal.SIGINT)
        assert up.process.wait(30) == 0
        await_death(children)
        assert not Path(path).exists()


def test_ctrl_c_lets_a_stream_finish(tmp_path):
    with run_up(tmp_path, "--workers", "1") as up:
        (line,) = [line for line in up.text().splitlines() if line.startswith("curl ")]
        long = line.replace('"max_tokens": 64', '"max_tokens": 600, "ignore_eos": true')
        curl = subprocess.Popen(["bash", "-c", long], stdout=subprocess.PIPE, text=True)
        assert curl.stdout is not None
        curl.stdout.readline()
        up.signal(signal.SIGINT)
        rest, _ = curl.communicate(timeout=30)
        assert rest.endswith("data: [DONE]\n\n")
        assert '"error"' not in rest
        assert up.process.wait(30) == 0


def test_when_the_gateway_dies_the_rest_goes_too(tmp_path):
    with run_up(tmp_path) as up:
        children = list_children(up.process.pid)
        os.kill(find_child(up, "service serve"), signal.SIGKILL)
        assert up.process.wait(30) == 1
        await_death(children)
        assert "the gateway ended" in up.text()


def test_a_worker_that_dies_is_named_and_the_last_one_ends_it(tmp_path):
    with run_up(tmp_path) as up:
        children = list_children(up.process.pid)
        os.kill(find_child(up, "service.emulator"), signal.SIGKILL)
        await_text(up, "the others go on")
        os.kill(find_child(up, "service.emulator"), signal.SIGKILL)
        assert up.process.wait(30) == 1
        await_death(children)
        assert "no worker is left" in up.text()


def test_nothing_outlives_a_parent_that_is_killed(tmp_path):
    with run_up(tmp_path) as up:
        children = list_children(up.process.pid)
        up.signal(signal.SIGKILL)
        up.process.wait(10)
        await_death(children)


def test_a_taken_port_is_named_with_the_cure(tmp_path):
    port, admin_port = find_ports(2)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        for environment, setting in (
            ({"PORT": str(port), "ADMIN_PORT": str(admin_port)}, "PORT"),
            ({"PORT": str(admin_port), "ADMIN_PORT": str(port)}, "ADMIN_PORT"),
        ):
            argv = [sys.executable, "-m", "service", "up", "--dir", str(tmp_path)]
            done = subprocess.run(
                argv, capture_output=True, text=True, env={**os.environ, **environment}, timeout=30, check=False
            )
            assert done.returncode == 1
            assert f"port {port} on 127.0.0.1 is taken" in done.stderr
            assert f"with {setting}" in done.stderr
            assert "Traceback" not in done.stderr


def test_the_examples_of_the_readme_run(tmp_path):
    text = (ROOT / "README.md").read_text()
    (shell,) = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with run_up(tmp_path, "--workers", "1") as up:
        key = re.search(r"sk-sluice-\S+", up.text()).group()
        here = f"127.0.0.1:{up.port}"
        assert "sk-sluice-..." in shell
        shell = shell.replace("sk-sluice-...", key).replace("127.0.0.1:8080", here)
        answer = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=30, check=True).stdout
        assert json.loads(answer)["usage"]["completion_tokens"] == 16
        done = subprocess.run(
            [sys.executable, "-c", program.replace("127.0.0.1:8080", here)],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "SLUICE_KEY": key},
            check=True,
        )
        assert len(done.stdout.strip()) > 0
    commands = re.findall(r"^(make [a-z]+|sluice [a-z]+)", text, re.MULTILINE)
    targets = (ROOT / "Makefile").read_text()
    assert commands
    for command in commands:
        program_name, word = command.split()
        if program_name == "make":
            assert f"\n{word}:" in targets
        else:
            run = subprocess.run([sys.executable, "-m", "service", word, "--help"], capture_output=True, check=False)
            assert run.returncode == 0, command
