"""What the chart renders for its pods, run as processes: settings, command lines, variables and hooks of a dev release.

The API server is a fake one; workers are emulated, as the dev values have it. Ports and folders are the only things
that are put in differently from a cluster.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from loadtests.live.child import choose_free_ports, run_child, wait_until_answering
from loadtests.live.fake_cluster import ClusterThread, FakeCluster
from service.cli.keys import describe_key
from service.gateway.auth import new_key
from tests.support.chart import FULLNAME, NAMESPACE, Rendered, render

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]
FIRST_PORT = 24600
TOKEN = "chart-admin-token"
DRAIN = {"delaySeconds": 1, "seconds": 20, "marginSeconds": 15}


class Release:
    """A rendered release whose pods run here. ``ports``: gateway, admin, worker."""

    def __init__(self, rendered: Rendered, ports: list[int], folder: Path) -> None:
        self.rendered = rendered
        self.gateway_port, self.admin_port, self.worker_port = ports
        self.folder = folder

    def container(self, component: str) -> dict[str, Any]:
        (found,) = self.rendered.one("Deployment", f"-{component}")["spec"]["template"]["spec"]["containers"]
        return found

    def argv(self, component: str) -> list[str]:
        return self.translate(self.container(component)["args"], component)

    def hook(self, component: str) -> list[str]:
        words = self.container(component)["lifecycle"]["preStop"]["exec"]["command"]
        assert words[0].endswith("sluice")
        return self.translate(words[1:], component)

    def translate(self, words: list[str], component: str) -> list[str]:
        """The command line with this machine's ports."""
        places = {"8081": str(self.admin_port), "8000": str(self.worker_port)}
        for old, new in places.items():
            words = [word.replace(f":{old}", f":{new}").replace(f"--port={old}", f"--port={new}") for word in words]
        return [sys.executable, "-m", "service", *words]

    def environment(self) -> dict[str, str]:
        """The gateway's variables; secrets are what the Secret would hold."""
        variables = {"SLUICE_ADMIN_TOKEN": TOKEN, "SLUICE_CACHE_SALT": "salt"}
        names = {each["name"] for each in self.container("gateway")["env"]}
        assert names == {*variables, "SLUICE_CONFIG"}
        file = self.folder / "sluice.yaml"
        settings = yaml.safe_load(self.rendered.one("ConfigMap", "-gateway")["data"]["sluice.yaml"])
        settings["listen"] |= {"port": self.gateway_port, "admin_port": self.admin_port}
        file.write_text(yaml.safe_dump(settings, sort_keys=False))
        return {**variables, "SLUICE_CONFIG": str(file), "PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.fixture
def cluster() -> Iterator[ClusterThread]:
    with ClusterThread(FakeCluster(NAMESPACE, f"{FULLNAME}-workers")) as thread:
        yield thread


def test_a_rendered_release_serves_and_leaves_by_its_hooks(cluster: ClusterThread, tmp_path: Path) -> None:
    key = new_key()
    described = describe_key(key)
    line = {name: described[name] for name in ("hash", "prefix")}
    values = {
        "drain": DRAIN,
        "settings": {
            "pool": {"kubernetes": {"api_server": cluster.cluster.url}},
            "tenants": [{"id": "acme", "tier": "priority", "keys": [line]}],
        },
    }
    rendered = render(values, files=["values-dev.yaml"])
    ports = choose_free_ports(FIRST_PORT, 3)
    release = Release(rendered, ports, tmp_path)
    environment = release.environment()
    logs = {name: tmp_path / f"{name}.log" for name in ("worker", "gateway")}
    gateway_url = f"http://127.0.0.1:{release.gateway_port}"
    with (
        run_child(release.argv("worker"), logs["worker"]) as worker,
        run_child(release.argv("gateway"), logs["gateway"], env=environment, cwd=tmp_path) as gateway,
    ):
        wait_until_answering(worker, f"http://127.0.0.1:{release.worker_port}/health", logs["worker"], 30, "")
        cluster.do(cluster.cluster.add, "worker-0", "uid-0", release.worker_port)
        wait_until_answering(gateway, f"{gateway_url}/readyz", logs["gateway"], 30, "")

        body = {"model": "MiniMax-M3.1-Flash", "max_tokens": 300, "stream": True}
        body["messages"] = [{"role": "user", "content": "hello"}]
        headers = {"authorization": f"Bearer {key}"}
        with httpx.stream(
            "POST", f"{gateway_url}/v1/chat/completions", json=body, headers=headers, timeout=30
        ) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            began_at = time.monotonic()
            hook = subprocess.run(
                release.hook("gateway"), env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert hook.returncode == 0, hook.stderr
            gateway.send_signal(signal.SIGTERM)
            rest = list(lines)
        assert [line for line in rest if line][-1] == "data: [DONE]"
        assert not any('"error"' in line for line in rest)
        assert gateway.wait(sum(DRAIN.values())) == 0
        grace = rendered.one("Deployment", "-gateway")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert time.monotonic() - began_at < grace

        emptied = subprocess.run(release.hook("worker"), cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert emptied.returncode == 0, emptied.stderr
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(15) == 0
