"""The operators' port of a running gateway."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time

import httpx
import pytest

from service.gateway.admin import ADMIN_OPEN_PATHS, build_admin
from tests.support.service_process import KEY, TOKEN, hash_of, request_body, run_gateway, run_worker

pytestmark = pytest.mark.integration

VIEWS = [f"/admin/v1/{name}" for name in ("state", "workers", "queues", "tenants", "config", "drain", "decisions")]
ACTIONS = [
    "/admin/v1/drain",
    "/admin/v1/config/reload",
    "/admin/v1/brownout",
    "/admin/v1/workers/x/drain",
    "/admin/v1/workers/x/undrain",
    "/admin/v1/workers/leave",
    "/admin/v1/restraint",
]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    folder = tmp_path_factory.mktemp("admin")
    with run_worker(folder, "instant") as worker, run_gateway(folder, [worker]) as gateway:
        gateway.worker_id = f"127.0.0.1:{worker.port}"
        yield gateway


def sluice(*arguments: str, token: str = TOKEN) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "service", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SLUICE_ADMIN_TOKEN": token},
    )


@pytest.mark.parametrize("token", [None, "wrong", TOKEN + "x", KEY])
def test_without_the_token_there_is_nothing_but_health_and_figures(gateway, token):
    for path in ("/healthz", "/readyz", "/metrics"):
        assert gateway.admin("GET", path, token).status_code == 200
    for method, paths in (("GET", [*VIEWS, "/", "/docs", "/admin/v1/none"]), ("POST", ACTIONS), ("HEAD", VIEWS)):
        for path in paths:
            assert gateway.admin(method, path, token).status_code == 401, path


def test_every_route_that_exists_is_guarded(gateway):
    paths = {route.path for route in build_admin(None, None).routes}
    assert set(VIEWS) < paths
    for path in paths - ADMIN_OPEN_PATHS:
        assert gateway.admin("GET", path, None).status_code == 401


def test_the_admin_routes_are_not_on_the_public_port(gateway):
    for path in [*VIEWS, "/metrics"]:
        for key in (TOKEN, KEY):
            answer = httpx.get(gateway.url + path, headers={"authorization": f"Bearer {key}"}, trust_env=False)
            assert answer.status_code == (404 if key == KEY else 401)


def test_views(gateway):
    state = gateway.admin("GET", "/admin/v1/state").json()
    assert state["ready"] is True
    assert state["phase"] == "serving"
    (worker,) = state["workers"]
    assert worker["id"] == gateway.worker_id
    assert worker["healthy"] is True
    assert gateway.worker_id not in worker["opaque"]
    assert gateway.admin("GET", "/admin/v1/queues").json()["queued_requests"] == 0
    tenants = gateway.admin("GET", "/admin/v1/tenants").json()["tenants"]
    assert [tenant["id"] for tenant in tenants] == ["acme", "late"]
    assert tenants[0]["key_prefixes"] == ["sk-sluice-Good"]
    config = gateway.admin("GET", "/admin/v1/config")
    assert config.json()["settings"]["limits"]["requests_per_worker"] == 64
    digest = hash_of(KEY)["hash"].removeprefix("sha256:")
    for view in VIEWS:
        text = gateway.admin("GET", view).text
        assert digest not in text
        assert TOKEN not in text
    assert gateway.admin("GET", "/admin/v1/none").status_code == 404
    assert gateway.admin("PUT", "/admin/v1/state").status_code == 405


def test_many_idle_connections_do_not_shut_out_the_scraper(gateway):
    with contextlib.ExitStack() as held:
        for _ in range(200):
            held.enter_context(socket.create_connection(("127.0.0.1", gateway.admin_port), 5))
        assert gateway.admin("GET", "/metrics", None).status_code == 200
        assert gateway.admin("GET", "/admin/v1/state").status_code == 200


def test_bodies_in_flight_are_counted(gateway):
    def held():
        lines = gateway.admin("GET", "/metrics", None).text.splitlines()
        (line,) = [line for line in lines if line.startswith("sluice_body_bytes_in_flight ")]
        return float(line.split()[1])

    assert held() == 0
    head = f"POST /v1/chat/completions HTTP/1.1\r\nauthorization: Bearer {KEY}\r\ncontent-length: 200000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", gateway.port), 5) as client:
        client.sendall(head.encode() + b"{" + b" " * 1000)
        wait_until(lambda: held() == 200_000)
    wait_until(lambda: held() == 0)


def wait_until(condition):
    until = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_figures(gateway):
    body = request_body(2, stream=False)
    headers = {"authorization": f"Bearer {KEY}"}
    assert httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers, trust_env=False).is_success
    page = gateway.admin("GET", "/metrics", None)
    assert page.headers["content-type"].startswith("text/plain")
    counted = [line for line in page.text.splitlines() if 'outcome="completed"' in line and 'tier="flex"' in line]
    assert any(line.split()[-1] not in ("0", "0.0") for line in counted)


def test_drain_and_undrain_a_worker_from_a_shell(gateway):
    admin = ("--admin", gateway.admin_url)
    done = sluice("drain", gateway.worker_id, *admin, "--json")
    assert json.loads(done.stdout) == {"worker": gateway.worker_id, "draining": True}
    unready = gateway.admin("GET", "/readyz")
    assert (unready.status_code, unready.json()["reason"]) == (503, "no worker is ready")
    assert int(unready.headers["retry-after"]) >= 1
    done = sluice("drain", gateway.worker_id, *admin, "--undo")
    assert done.returncode == 0
    assert "takes work again" in done.stdout
    assert gateway.admin("GET", "/readyz").status_code == 200
    missing = sluice("drain", "127.0.0.1:1", *admin)
    assert (missing.returncode, "no worker" in missing.stderr) == (1, True)
    assert sluice("drain", *admin, token="wrong").returncode == 1
    assert sluice("drain", "--undo", *admin).returncode == 2


def test_drain_the_gateway_from_a_shell(tmp_path):
    with run_worker(tmp_path, "instant") as worker, run_gateway(tmp_path, [worker]) as leaving:
        done = sluice("drain", "--admin", leaving.admin_url)
        assert done.returncode == 0, done.stderr
        assert "leaving" in done.stdout
        assert leaving.process.wait(10) == 0
        gone = sluice("drain", "--admin", leaving.admin_url)
        assert gone.returncode == 1
        assert "does not answer" in gone.stderr


def test_a_token_is_made_where_none_is_given(tmp_path):
    environment = {"SLUICE_ADMIN_TOKEN": "", "XDG_RUNTIME_DIR": str(tmp_path)}
    with (
        run_worker(tmp_path, "instant") as worker,
        run_gateway(tmp_path, [worker], environment) as own,
    ):
        path = tmp_path / "sluice" / f"admin-token-{own.admin_port}"
        token = path.read_text()
        assert path.stat().st_mode & 0o777 == 0o600
        assert str(path) in own.text()
        assert token not in own.text()
        assert own.admin("GET", "/admin/v1/state", token).status_code == 200
        assert own.admin("GET", "/admin/v1/state").status_code == 401


def test_a_port_that_is_taken_is_named_with_the_cure(gateway, tmp_path):
    text = gateway.config.read_text()
    copy = tmp_path / "copy.yaml"
    copy.write_text(text)
    done = sluice("serve", "-c", str(copy))
    assert done.returncode == 1
    assert f"port {gateway.port} on 127.0.0.1 is taken" in done.stderr
    assert "listen.port" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_operator_switches_restraint_off_and_on(gateway):
    assert gateway.admin("GET", "/admin/v1/state").json()["restraint"] == {"on": True, "ceilings": {}}

    def send(body):
        headers = {"authorization": f"Bearer {TOKEN}"}
        return httpx.post(f"{gateway.admin_url}/admin/v1/restraint", content=body, headers=headers, trust_env=False)

    assert send(b'{"on": false}').json() == {"on": False, "ceilings": {}}
    for wrong in (b"", b'{"on": 1}', b'{"on": true, "more": 1}', b"[]"):
        assert send(wrong).status_code == 422
    assert send(b'{"on": true}').json()["on"]


def test_the_last_worker_may_not_go(gateway):
    answer = gateway.admin("POST", "/admin/v1/workers/leave")
    assert answer.status_code == 409
    assert "only one is left" in answer.json()["error"]["message"]
