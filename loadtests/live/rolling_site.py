"""A service as a cluster runs it, on loopback: gateways behind a real Envoy, workers found through an API server, and
each of them ended and begun again the way a platform does that to a pod.

What a kubelet does to a pod is done here in the same order: the pod is marked as terminating (its endpoint says so),
its preStop hook runs, SIGTERM follows when the hook has returned, and SIGKILL when the grace is over. The hooks are the
commands that the pods run: ``sluice drain`` and ``sluice worker drain``.

What Envoy does here by asking ``/readyz`` four times a second, Services do by EndpointSlices; both take a moment, which
is what the gateway's ``drain_delay_s`` is for. Envoy retries nothing, so that every failed request is seen.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from loadtests.live import peer_configs
from loadtests.live.backend import MODEL
from loadtests.live.child import ChildError, choose_free_ports, quote_end, run_child, wait_until_answering
from loadtests.live.fake_cluster import ClusterThread, FakeCluster
from loadtests.live.overload_arms import build_key, build_sluice_overload_config
from loadtests.live.peer_configs import Site
from loadtests.live.peers import PEERS, REPOSITORY
from loadtests.live.traffic import Mix

TOKEN = "admin-token-of-a-rolling-restart"  # noqa: S105 - of processes on loopback that live for minutes
START_LIMIT_S = 60.0
MIN_READY_S = 2.0
"""As ``minReadySeconds``: for so long a new one must be up before the next is ended."""


@dataclass(frozen=True)
class Shape:
    """How large the service is, and the lengths that belong to its ends.

    ``grace_s``: from the beginning of a pod's end to SIGKILL; ``worker_deadline_s``: of each worker's preStop hook in
    turn; what runs on it then is the engine's to finish within ``shutdown_timeout_s``.
    """

    gateways: int = 3
    worker_deadlines_s: tuple[float, ...] = (30.0, 3.0)
    drain_delay_s: float = 3.0
    grace_s: float = 60.0
    shutdown_timeout_s: int = 30
    profile: str = "m3.1-flash"
    hooks: bool = True

    def without_hooks(self) -> Shape:
        """The same service ended as carelessly as defaults do: SIGTERM at once, no drain delay, no time for the engine
        to finish, and nobody is told that a worker goes before it is gone."""
        return replace(self, hooks=False, drain_delay_s=0.0, grace_s=4.0, shutdown_timeout_s=0)


@dataclass
class Step:
    """One pod that was ended and begun again; moments are seconds from the start of the rollout."""

    pod: str
    began_s: float
    hook_s: float
    hook_said: str
    gone_s: float
    code: int
    ready_s: float


def build_gateway_config(mix: Mix, shape: Shape, site: Site, cluster: FakeCluster) -> str:
    """One gateway: two tiers, workers by discovery, a drain delay that an Envoy can follow; YAML."""
    config = yaml.safe_load(build_sluice_overload_config(mix, site))
    config["pool"] = {
        "discovery": "kubernetes",
        "service": cluster.service,
        "port_name": "http",
        "namespace": cluster.namespace,
        "profile": shape.profile if shape.profile in ("m3.1-flash", "cpu-small") else None,
        "kubernetes": {"api_server": cluster.url},
    }
    config["limits"] = {"drain_delay_s": shape.drain_delay_s, "grace_s": shape.grace_s}
    return str(yaml.safe_dump(config, sort_keys=False))


def build_proxy_bootstrap(site: Site) -> str:
    """Envoy before the gateways: asks each whether it is ready, never retries, and sends nothing to one that is not."""
    bootstrap = yaml.safe_load(peer_configs.build_envoy_bootstrap(site))
    (cluster,) = bootstrap["static_resources"]["clusters"]
    cluster["common_lb_config"] = {"healthy_panic_threshold": {"value": 0.0}}
    cluster["health_checks"] = [
        {
            "timeout": "2s",
            "interval": "0.25s",
            "no_traffic_interval": "0.25s",
            "unhealthy_interval": "0.25s",
            "unhealthy_threshold": 1,
            "healthy_threshold": 1,
            "http_health_check": {"path": "/readyz"},
        }
    ]
    return str(yaml.safe_dump(bootstrap, sort_keys=False))


@dataclass
class Pod:
    """A process in its place. ``uid`` is another one after each start."""

    name: str
    port: int
    admin_port: int = 0
    starts: int = 0
    stack: ExitStack = field(default_factory=ExitStack)
    process: subprocess.Popen[bytes] | None = None

    @property
    def uid(self) -> str:
        """The identity of the present process."""
        return f"{self.name}-{self.starts}"

    def log(self, folder: Path) -> Path:
        """What the present process writes."""
        return folder / f"{self.uid}.log"


class RollingSite:
    """Everything that runs. ``now`` gives the moment of each step."""

    def __init__(self, mix: Mix, shape: Shape, ports: Sequence[int], folder: Path, thread: ClusterThread) -> None:
        self._mix = mix
        self._shape = shape
        self._folder = folder
        self._thread = thread
        self.proxy_port, self.proxy_admin_port, *rest = ports
        self.workers = [Pod(f"worker-{number}", rest.pop()) for number in range(len(shape.worker_deadlines_s))]
        self.gateways = [Pod(f"gateway-{number}", rest.pop(), rest.pop()) for number in range(shape.gateways)]
        self.steps: list[Step] = []
        self.began_at = time.monotonic()

    def start(self) -> None:
        """Start everything and wait until the proxy has a gateway to send to."""
        for worker in self.workers:
            self._start_worker(worker)
        for gateway in self.gateways:
            self._start_gateway(gateway)

    def stop(self) -> None:
        """End what runs."""
        for pod in (*self.gateways, *self.workers):
            pod.stack.close()

    # ------------------------------------------------------------------ starting

    def _start_worker(self, pod: Pod) -> None:
        shape = self._shape
        pod.starts += 1
        argv = [
            *(sys.executable, "-m", "service.emulator", "--port", str(pod.port), "--profile", shape.profile),
            *("--shutdown-timeout", str(shape.shutdown_timeout_s), "--request-log", "0"),
        ]
        log = pod.log(self._folder)
        pod.process = pod.stack.enter_context(run_child(argv, log, cwd=REPOSITORY))
        self._thread.do(self._thread.cluster.add, pod.name, pod.uid, pod.port)
        wait_until_answering(pod.process, f"http://127.0.0.1:{pod.port}/health", log, START_LIMIT_S, "")

    def _start_gateway(self, pod: Pod) -> None:
        pod.starts += 1
        site = Site(pod.port, pod.admin_port, (), self._folder)
        config = self._folder / f"{pod.name}.yaml"
        config.write_text(build_gateway_config(self._mix, self._shape, site, self._thread.cluster))
        argv = [sys.executable, "-m", "service", "serve", "-c", str(config)]
        log = pod.log(self._folder)
        environment = {"SLUICE_ADMIN_TOKEN": TOKEN, "SLUICE_CACHE_SALT": "rolling"}
        pod.process = pod.stack.enter_context(run_child(argv, log, env=environment, cwd=REPOSITORY))
        wait_until_answering(pod.process, f"http://127.0.0.1:{pod.port}/readyz", log, START_LIMIT_S, "")

    # ------------------------------------------------------------------ ending and beginning again

    def roll(self, say: Callable[[str], None]) -> None:
        """Each gateway, then each worker, one after the other."""
        self.began_at = time.monotonic()
        for gateway in self.gateways:
            hook = [sys.executable, "-m", "service", "drain", "--admin", f"http://127.0.0.1:{gateway.admin_port}"]
            say(self._roll_pod(gateway, hook, lambda: None, lambda: None, self._start_gateway))
        cluster = self._thread.cluster
        for worker, deadline_s in zip(self.workers, self._shape.worker_deadlines_s, strict=True):
            hook = [
                *(sys.executable, "-m", "service", "worker", "drain", "--url", f"http://127.0.0.1:{worker.port}"),
                *("--deadline-s", f"{deadline_s:g}", "--delay-s", "1"),
            ]
            uid = worker.uid
            say(
                self._roll_pod(
                    worker,
                    hook,
                    lambda uid=uid: self._thread.do(cluster.terminate, uid),  # type: ignore[misc]  # bound early
                    lambda uid=uid: self._thread.do(cluster.remove, uid),  # type: ignore[misc]  # bound early
                    self._start_worker,
                )
            )

    def _roll_pod(
        self,
        pod: Pod,
        hook: Sequence[str],
        mark: Callable[[], None],
        forget: Callable[[], None],
        start: Callable[[Pod], None],
    ) -> str:
        process = pod.process
        if process is None:
            raise ChildError(f"{pod.name} does not run")
        began_s, kill_at = self._now_s(), time.monotonic() + self._shape.grace_s
        said = "none"
        if self._shape.hooks:
            mark()
            said = self._run_hook(pod, hook)
        hook_s = self._now_s()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(max(kill_at - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        gone_s = self._now_s()
        if code != 0:
            raise ChildError(f"{pod.name} ended with {code}: {quote_end(pod.log(self._folder))}")
        pod.stack.close()
        forget()
        start(pod)
        time.sleep(MIN_READY_S)
        step = Step(pod.name, began_s, hook_s, said, gone_s, code, self._now_s())
        self.steps.append(step)
        return (
            f"{pod.name}: hook {hook_s - began_s:.1f} s, gone after {gone_s - began_s:.1f} s,"
            f" ready again after {step.ready_s - began_s:.1f} s ({step.hook_said})"
        )

    def _run_hook(self, pod: Pod, hook: Sequence[str]) -> str:
        """What it said."""
        environment = {**os.environ, "SLUICE_ADMIN_TOKEN": TOKEN}
        done = subprocess.run(  # noqa: S603 - our own commands
            hook, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=self._shape.grace_s,
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise ChildError(f"the hook of {pod.name} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout.strip()

    def _now_s(self) -> float:
        return time.monotonic() - self.began_at

    def fetch_states(self) -> list[dict[str, object]]:
        """How each gateway sees its workers at present."""
        states = []
        for gateway in self.gateways:
            request = urllib.request.Request(
                f"http://127.0.0.1:{gateway.admin_port}/admin/v1/state", headers={"authorization": f"Bearer {TOKEN}"}
            )
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - http on loopback
                states.append(json.load(answer))
        return states


@contextmanager
def run_site(mix: Mix, shape: Shape, first_port: int, folder: Path) -> Iterator[RollingSite]:
    """All of it, ready; gone when the context ends."""
    count = 2 + len(shape.worker_deadlines_s) + 2 * shape.gateways
    ports = choose_free_ports(first_port, count)
    program = PEERS["envoy"].install().program
    with ExitStack() as stack:
        thread = stack.enter_context(ClusterThread(FakeCluster()))
        site = RollingSite(mix, shape, ports, folder, thread)
        stack.callback(site.stop)
        site.start()
        public = Site(site.proxy_port, site.proxy_admin_port, tuple(pod.port for pod in site.gateways), folder)
        (folder / "envoy.yaml").write_text(build_proxy_bootstrap(public))
        log = folder / "envoy.log"
        envoy = stack.enter_context(run_child(peer_configs.build_envoy_command(program, public), log, cwd=folder))
        url = f"http://127.0.0.1:{site.proxy_port}/v1/models"
        wait_until_answering(envoy, url, log, START_LIMIT_S, build_key(mix.tiers[0].tier))
        yield site


__all__ = ["MODEL", "RollingSite", "Shape", "Step", "run_site"]
