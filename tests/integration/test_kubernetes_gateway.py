"""D18 end to end: a real gateway process follows a cluster's pods, and serves on while the API server is away."""

import re
import time
from typing import Any

import httpx
import pytest

from loadtests.live.fake_cluster import ClusterThread, FakeCluster
from tests.support.service_process import KEY, Process, request_body, run_gateway, run_worker

pytestmark = pytest.mark.integration
HEADERS = {"authorization": f"Bearer {KEY}"}


def await_workers(gateway: Process, **wanted: str) -> dict[str, dict[str, Any]]:
    """Wait until exactly these are known, and so they are: ``healthy``, ``draining`` or else."""
    end_at = time.monotonic() + 20
    while True:
        workers = {one["id"]: one for one in gateway.admin("GET", "/admin/v1/workers").json()["workers"]}
        found = {name: "draining" if one["draining"] else one["reason"] for name, one in workers.items()}
        if found == wanted:
            return workers
        assert time.monotonic() < end_at, f"{found} is not {wanted}: {gateway.text()}"
        time.sleep(0.02)


def ask(gateway: Process) -> str:
    """One short answer; by whom."""
    answer = httpx.post(
        f"{gateway.url}/v1/chat/completions",
        json=request_body(2, stream=False), headers=HEADERS, timeout=20, trust_env=False,
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    return answer.headers["x-sluice-worker"]


def test_d18_pods_come_and_go(tmp_path):
    token = tmp_path / "token"
    token.write_text("t-1")
    with (
        run_worker(tmp_path, "instant") as one,
        run_worker(tmp_path, "instant") as two,
        ClusterThread(FakeCluster(token="t-1")) as thread,
    ):
        cluster = thread.cluster
        thread.do(cluster.add, "w-0", "uid-0", one.port)
        api = {"api_server": cluster.url, "token_file": str(token), "relist_s": 1.0, "deletion_cost": True}
        pool = {"discovery": "kubernetes", "service": "workers", "namespace": "inference", "kubernetes": api}
        with run_gateway(tmp_path, [], pool=pool) as gateway:
            first = await_workers(gateway, **{"uid-0": "good"})["uid-0"]
            assert first["pod"] == "w-0"
            assert ask(gateway) == first["opaque"]
            # a pod comes, another one is told to go: it has no new work from then on
            thread.do(cluster.add, "w-1", "uid-1", two.port)
            second = await_workers(gateway, **{"uid-0": "good", "uid-1": "good"})["uid-1"]
            thread.do(cluster.terminate, "uid-0")
            await_workers(gateway, **{"uid-0": "draining", "uid-1": "good"})
            assert {ask(gateway) for _ in range(8)} == {second["opaque"]}
            # an operator names it as people do, and cannot call back what the platform ends
            assert gateway.admin("POST", "/admin/v1/workers/w-0/undrain").status_code == 200
            await_workers(gateway, **{"uid-0": "draining", "uid-1": "good"})
            assert gateway.admin("POST", "/admin/v1/workers/w-7/drain").status_code == 404
            # the watch falls silent, and the pod is gone: the next list tells
            cluster.muted = True
            thread.do(cluster.remove, "uid-0")
            await_workers(gateway, **{"uid-1": "good"})
            cluster.muted = False
            # the API server is away, and its token is another one when it is back
            thread.run(cluster.stop())
            end_at = time.monotonic() + 10
            while gateway.admin("GET", "/admin/v1/state").json()["discovery"]["failures"] < 2:
                assert time.monotonic() < end_at
                assert ask(gateway) == second["opaque"]
            cluster.token = "t-2"
            token.write_text("t-2")
            thread.do(cluster.remove, "uid-1")
            thread.do(cluster.add, "w-9", "uid-9", two.port)  # at the same address
            thread.run(cluster.start())
            third = await_workers(gateway, **{"uid-9": "good"})["uid-9"]
            assert ask(gateway) == third["opaque"] != second["opaque"]
            assert gateway.admin("GET", "/admin/v1/state").json()["discovery"]["last_error"] is None
            figures = httpx.get(f"{gateway.admin_url}/metrics", trust_env=False).text
            assert re.search(r"^sluice_discovery_failures_total [1-9]", figures, re.MULTILINE)
            assert re.search(r"^sluice_discovery_missed_total 1", figures, re.MULTILINE)
            assert re.search(r"^sluice_discovery_age_seconds [0-9.e-]+$", figures, re.MULTILINE)


def test_a_lost_worker_is_left_at_once_though_the_cluster_does_not_know_yet(tmp_path):
    with (
        run_worker(tmp_path, "instant") as one,
        run_worker(tmp_path, "instant") as two,
        ClusterThread(FakeCluster()) as thread,
    ):
        cluster = thread.cluster
        thread.do(cluster.add, "w-0", "uid-0", one.port)
        thread.do(cluster.add, "w-1", "uid-1", two.port)
        api = {"api_server": cluster.url}
        pool = {"discovery": "kubernetes", "service": "workers", "namespace": "inference", "kubernetes": api}
        with run_gateway(tmp_path, [], pool=pool) as gateway:
            workers = await_workers(gateway, **{"uid-0": "good", "uid-1": "good"})
            one.process.kill()
            assert {ask(gateway) for _ in range(30)} == {workers["uid-1"]["opaque"]}  # tried again, none is lost
            await_workers(gateway, **{"uid-0": "refused", "uid-1": "good"})
            two.process.kill()
            end_at = time.monotonic() + 10
            while httpx.get(f"{gateway.url}/readyz", trust_env=False).status_code != 503:
                assert time.monotonic() < end_at
            assert httpx.get(f"{gateway.url}/healthz", trust_env=False).status_code == 200
            thread.do(cluster.remove, "uid-0")
            await_workers(gateway, **{"uid-1": "refused"})
