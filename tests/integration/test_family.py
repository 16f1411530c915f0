"""Children that never outlive their parent, and listeners that say why they cannot listen."""

import signal
import socket
import sys
import time

import pytest

from service.launch.family import start_child
from service.launch.ports import find_free_ports
from service.runtime.sockets import AddressRefusedError, open_listener
from tests.support.service_process import find_ports, is_alive, list_group

pytestmark = pytest.mark.integration

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("up", flush=True)
time.sleep(60)
"""


def test_a_child_that_does_not_want_to_go_is_ended_with_all_it_started(tmp_path):
    child = start_child("stubborn", (sys.executable, "-c", STUBBORN), tmp_path / "log")
    until = time.monotonic() + 20
    while "up" not in child.read_tail(1):
        assert time.monotonic() < until
        time.sleep(0.02)
    group = list_group(child.process.pid)
    assert len(group) == 2
    assert child.end(0.2) == -signal.SIGKILL
    until = time.monotonic() + 5
    while any(is_alive(pid) for pid in group):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert child.end(0.1) == -signal.SIGKILL, "ending twice changes nothing"


def test_output_and_environment(tmp_path):
    argv = (sys.executable, "-c", "import os; print('one'); print(os.environ['X'])")
    child = start_child("talker", argv, tmp_path / "log", {"X": "two"})
    assert child.process.wait(20) == 0
    assert child.read_tail(5) == "one\ntwo"
    quiet = start_child("quiet", (sys.executable, "-c", "pass"), None)
    assert quiet.process.wait(20) == 0
    assert quiet.read_tail(5) == ""


def test_free_ports_differ():
    ports = find_free_ports(8)
    assert len(set(ports)) == 8


def test_a_listener_says_why_it_cannot_listen():
    (port,) = find_ports(1)
    with open_listener("127.0.0.1", port, "PORT") as first:
        first.listen()
        with pytest.raises(AddressRefusedError, match=rf"port {port} on 127\.0\.0\.1 is taken.*with PORT"):
            open_listener("127.0.0.1", port, "PORT")
    with pytest.raises(AddressRefusedError, match=r"cannot listen on 203\.0\.113\.1"):
        open_listener("203.0.113.1", port, "PORT")
    with pytest.raises(AddressRefusedError, match="is no address of this machine"):
        open_listener("no.such.host.invalid", port, "PORT")


def test_ports_that_need_more_rights(monkeypatch):
    def refuse(self, address):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(AddressRefusedError, match="needs more rights"):
        open_listener("127.0.0.1", 80, "listen.port")
