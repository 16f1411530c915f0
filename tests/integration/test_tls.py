"""Certificates: of the public port, also when they change, and of workers that are found by name."""

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from loadtests.live.fake_cluster import ClusterThread, FakeCluster
from tests.support.service_process import (
    KEY,
    TOKEN,
    Process,
    await_success,
    find_ports,
    request_body,
    run_gateway,
    run_worker,
)
from tests.support.tls_front import make_certificate, run_tls_front

pytestmark = pytest.mark.integration
HEADERS = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(autouse=True)
def _openssl() -> None:
    if shutil.which("openssl") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("openssl is missing: deploy/test-parts.sh installs it", pytrace=False)
        pytest.skip("openssl, which makes the certificates, is missing")


def show_subject(port: int) -> str:
    """Whose certificate the port shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection(("127.0.0.1", port), 5) as plain, context.wrap_socket(plain) as secure:
        assert secure.selected_alpn_protocol() == "http/1.1"
        shown = secure.getpeercert(binary_form=True)
    assert shown is not None
    argv = ["openssl", "x509", "-inform", "DER", "-noout", "-subject"]
    return subprocess.run(argv, input=shown, check=True, capture_output=True, timeout=10).stdout.decode()


@contextlib.contextmanager
def run_secure_gateway(folder: Path, worker: Process, **limits: float) -> Iterator[tuple[Process, int]]:
    """A gateway with a certificate, and its public port; readiness is asked of the admin port."""
    port, admin_port = find_ports(2)
    tls = {"cert": str(folder / "cert.pem"), "key": str(folder / "key.pem")}
    listen = {"port": port, "admin_port": admin_port, "tls": tls}
    more = {"requests_per_worker": 64, "drain_delay_s": 0.0, "grace_s": 10.0, **limits}
    with run_gateway(folder, [worker], ready_on_admin=True, listen=listen, limits=more) as gateway:
        yield gateway, port


def test_clients_are_served_over_tls_and_a_changed_certificate_is_seen_at_reload(tmp_path):
    make_certificate(tmp_path, "rsa", "IP:127.0.0.1", "before")
    first = (tmp_path / "cert.pem").read_bytes()
    (tmp_path / "trusted.pem").write_bytes(first)
    trusted = ssl.create_default_context(cafile=str(tmp_path / "trusted.pem"))
    with run_worker(tmp_path, "instant") as worker, run_secure_gateway(tmp_path, worker) as (gateway, port):
        url = f"https://127.0.0.1:{port}/v1/chat/completions"
        with httpx.Client(verify=trusted, trust_env=False, headers=HEADERS) as client:
            answer = client.post(url, json=request_body(300))
            assert (answer.status_code, answer.text[-14:]) == (200, "data: [DONE]\n\n")
            assert "CN = before" in show_subject(port)

            make_certificate(tmp_path, "ec", "IP:127.0.0.1", "after")
            assert "CN = before" in show_subject(port)
            assert gateway.admin("POST", "/admin/v1/config/reload").json() == {"status": "applied", "needs_restart": []}
            assert "CN = after" in show_subject(port)
            assert client.post(url, json=request_body(2)).status_code == 200, "open connections go on"

            (tmp_path / "cert.pem").write_bytes(first)  # whose key is not there any more
            refused = gateway.admin("POST", "/admin/v1/config/reload")
            assert (refused.status_code, "listen.tls" in refused.text) == (422, True)
            assert "CN = after" in show_subject(port)


def test_who_never_shakes_hands_is_not_kept(tmp_path):
    make_certificate(tmp_path, "ec", "IP:127.0.0.1", "here")
    with (
        run_worker(tmp_path, "instant") as worker,
        run_secure_gateway(tmp_path, worker, head_timeout_s=1.0) as (_, port),
        socket.create_connection(("127.0.0.1", port), 10) as silent,
    ):
        began_at = time.monotonic()
        with contextlib.suppress(ConnectionError):
            assert silent.recv(1) == b""
        assert 0.5 < time.monotonic() - began_at < 5


@pytest.mark.parametrize(("names", "served"), [("DNS:localhost", True), ("DNS:elsewhere.test", False)])
def test_workers_found_by_name_show_a_certificate_for_that_name(tmp_path, names, served):
    make_certificate(tmp_path, "ec", names, "worker")
    (front_port,) = find_ports(1)
    pool = {"discovery": "dns", "name": "localhost", "port": front_port, "tls": True}
    authorities = {"SSL_CERT_FILE": str(tmp_path / "cert.pem")}
    with (
        run_worker(tmp_path, "instant") as worker,
        run_tls_front(front_port, worker.port, tmp_path),
        run_gateway(tmp_path, [worker], authorities, ready=served, pool=pool) as gateway,
    ):
        if served:
            url = f"{gateway.url}/v1/chat/completions"
            answer = httpx.post(url, json=request_body(2), headers=HEADERS, trust_env=False, timeout=10)
            assert answer.status_code == 200
        else:
            time.sleep(2)
            ready = httpx.get(f"{gateway.url}/readyz", trust_env=False)
            assert (ready.status_code, gateway.admin("GET", "/readyz", TOKEN).status_code) == (503, 503)


def test_the_api_server_must_show_a_certificate_of_its_authorities_which_may_change(tmp_path):
    make_certificate(tmp_path, "ec", "IP:127.0.0.1", "api")
    (folder := tmp_path / "other").mkdir()
    make_certificate(folder, "ec", "IP:127.0.0.1", "other")
    bundle = tmp_path / "ca.crt"
    bundle.write_bytes((folder / "cert.pem").read_bytes())
    (front_port,) = find_ports(1)
    api = {"api_server": f"https://127.0.0.1:{front_port}", "ca_file": str(bundle)}
    pool = {"discovery": "kubernetes", "service": "workers", "namespace": "inference", "kubernetes": api}
    with (
        run_worker(tmp_path, "instant") as worker,
        ClusterThread(FakeCluster()) as thread,
        run_tls_front(front_port, thread.cluster.port, tmp_path),
        run_gateway(tmp_path, [], ready=False, pool=pool) as gateway,
    ):
        thread.do(thread.cluster.add, "w-0", "uid-0", worker.port)
        end_at = time.monotonic() + 20
        while not (told := gateway.admin("GET", "/admin/v1/state").json()["discovery"])["last_error"]:
            assert time.monotonic() < end_at
        assert "certificate" in told["last_error"].lower()
        assert thread.cluster.calls == []
        bundle.write_bytes((tmp_path / "cert.pem").read_bytes())
        await_success(f"{gateway.url}/readyz", gateway)
