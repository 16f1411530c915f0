"""The emulator, as a process of its own, keeps the contract of a vLLM worker."""

import signal
import subprocess
import sys

import httpx
import pytest

from tests.conformance.worker_contract import CHECKS, Subject

pytestmark = pytest.mark.integration
MODEL = "MiniMax-M3.1-Flash"


@pytest.fixture(scope="module", params=["m3.1-flash", "cpu-small"])
def subject(request):
    command = [sys.executable, "-m", "service.emulator", "--port", "0", "--profile", request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        url = next(word for word in line.split() if word.startswith("http://"))
        with httpx.Client(base_url=url, timeout=20) as client:
            yield Subject(client, MODEL, speculation=request.param == "m3.1-flash")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_contract(subject, check):
    check(subject)
