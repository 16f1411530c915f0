"""``sluice up``: a complete service on this machine, for trying it out; ends as a whole, however it ends."""

import os
import shlex
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import httpx
import typer

from service.cli.demo import HOST, Engine, WorkerPlan, make_keys, plan_workers, render_curl, write_config
from service.cli.elastic import Elastic, Elasticity, GatewayRoll, find_prometheus
from service.cli.options import BAD_INPUT, FAILED, fail, say
from service.launch.family import Child, start_child
from service.launch.fault import EngineUnavailableError
from service.launch.fleet import Fleet
from service.launch.ports import find_free_ports
from service.runtime.clock import MonotonicClock
from service.runtime.sockets import AddressRefusedError, open_listener
from service.settings.admin_token import locate_token_file
from service.settings.build import ADMIN_TOKEN

_LOOK_EVERY_S = 0.2
_SAY_EVERY_S = 10.0
_GATEWAY_PATIENCE_S = 45.0
_WORKER_PATIENCE_S = 15.0


def up(
    engine: Annotated[Engine, typer.Option(envvar="ENGINE", help="What the workers are.")] = Engine.EMULATED,
    workers: Annotated[int, typer.Option(envvar="WORKERS", min=1, max=16, help="How many.")] = 2,
    port: Annotated[int, typer.Option(envvar="PORT", min=1, max=65534, help="Port for clients.")] = 8080,
    admin_port: Annotated[
        int | None, typer.Option(envvar="ADMIN_PORT", min=1, max=65535, help="Port for operators; else the next one.")
    ] = None,
    autoscale: Annotated[bool, typer.Option("--autoscale", help="Let the scaler start and stop workers.")] = False,
    most: Annotated[int, typer.Option(min=1, max=64, help="With --autoscale: workers that there may be.")] = 6,
    cold_start_s: Annotated[
        float, typer.Option(min=0.0, help="With --autoscale: how long an emulated worker takes to start.")
    ] = 20.0,
    step_s: Annotated[
        float, typer.Option(min=0.2, help="With --autoscale: seconds between decisions; its holds are in proportion.")
    ] = 5.0,
    worker_options: Annotated[str, typer.Option(help="More options of emulated workers; see sluice emulate.")] = "",
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Where all files go; else var/up-PORT, the ledger var.")
    ] = None,
) -> None:
    """Start workers and a gateway on loopback, print keys and a curl line, stop all of it at Ctrl-C.

    Examples:  sluice up
               sluice up --engine vllm-cpu --port 9000
               sluice up --autoscale --workers 1 --most 6 --worker-options '--max-num-seqs 8'
    """
    admin = admin_port if admin_port is not None else port + 1
    if admin == port:
        fail("the admin port is the port for clients too", BAD_INPUT)
    for number, setting in ((port, "PORT"), (admin, "ADMIN_PORT")):
        try:
            open_listener(HOST, number, setting).close()
        except AddressRefusedError as error:
            fail(str(error))
    family = _Family(folder or Path(f"var/up-{port}"), port, admin, folder or Path("var"), shlex.split(worker_options))
    if autoscale:
        if most < workers:
            fail(f"--most {most} is less than --workers {workers}: there are more than there may be", BAD_INPUT)
        family.elasticity = Elasticity(workers, most, cold_start_s, step_s, *find_free_ports(2))
    raise typer.Exit(family.live(engine, workers))


class _Stopped(Exception):  # noqa: N818 - a way out, not an error
    """Somebody wants all of it to end, or a part that nothing works without has ended."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class _Family:
    """The workers and their gateway."""

    def __init__(
        self, folder: Path, port: int, admin_port: int, record_folder: Path, worker_options: list[str]
    ) -> None:
        self.elasticity: Elasticity | None = None
        self._elastic: Elastic | None = None
        self._others: list[Child] = []
        self._worker_options = tuple(worker_options)
        self._folder = folder
        self._record_folder = record_folder
        self._port = port
        self._admin_port = admin_port
        self._now = MonotonicClock().now
        self._word = threading.Event()
        self._preparing = True
        self._workers: list[Child] = []
        self._gateway: Child | None = None

    def live(self, engine: Engine, count: int) -> int:
        """From start to end; the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._start(engine, count)
            self._watch()
        except _Stopped as stopped:
            return stopped.code
        except EngineUnavailableError as error:
            say(f"sluice: {error}")
            return FAILED
        finally:
            self._stop()

    def _on_signal(self, *_: object) -> None:
        """While the engine is being prepared there is nothing to be ended in order: leave at once."""
        if self._preparing:
            raise _Stopped(FAILED)
        self._word.set()

    # ---------------------------------------------------------------- start

    def _start(self, engine: Engine, count: int) -> None:
        if self.elasticity is not None:
            find_prometheus()
        worker_ports = find_free_ports(count)
        plan = plan_workers(engine, worker_ports, say)
        self._preparing = False
        say(f"starting {count} {engine.value} worker{'s' if count > 1 else ''} and a gateway")
        for index, (argv, environment) in enumerate(plan.commands, 1):
            line = (*argv, *self._worker_options)
            self._workers.append(self._child(f"worker {index}", f"worker-{index}.log", line, environment))
        keys = make_keys()
        config = write_config(self._folder, plan, worker_ports, self._port, self._admin_port, keys, self._record_folder)
        argv = (sys.executable, "-m", "service", "serve", "-c", str(config))
        self._gateway = self._child("gateway", "gateway.log", argv, {})
        for worker, worker_port in zip(self._workers, worker_ports, strict=True):
            self._await_answer(worker, f"http://{HOST}:{worker_port}/health", plan.patience_s)
        self._await_answer(self._gateway, f"http://{HOST}:{self._port}/readyz", 60.0)
        if self.elasticity is not None:
            self._make_elastic(
                engine, self.elasticity, plan, config, dict(zip(worker_ports, self._workers, strict=True)), keys
            )
        self._announce(engine, plan, keys)

    def _make_elastic(
        self, engine: Engine, how: Elasticity, plan: WorkerPlan, config: Path, workers: dict[int, Child],
        keys: Mapping[str, str],
    ) -> None:  # fmt: skip
        cold = ("--startup-delay", str(how.cold_start_s)) if engine is Engine.EMULATED else ()

        def start(port: int) -> Child:
            ((argv, environment),) = plan_workers(engine, [port], say).commands
            line = (*argv, *self._worker_options, *cold)
            return self._child(f"worker on {port}", f"worker-{port}.log", line, environment)

        def write(ports: Sequence[int]) -> None:
            write_config(self._folder, plan, list(ports), self._port, self._admin_port, keys, self._record_folder)

        fleet = Fleet(start, lambda: find_free_ports(1)[0], GatewayRoll(self._admin_port, write), say, workers)
        self._elastic = Elastic(how, fleet, self._now)
        self._others = self._elastic.start(
            self._folder, config, self._admin_port, lambda name, log, argv: self._child(name, log, argv, {})
        )

    def _child(self, name: str, log: str, argv: tuple[str, ...], environment: Mapping[str, str]) -> Child:
        return start_child(name, argv, self._folder / log, environment)

    def _await_answer(self, child: Child, url: str, patience_s: float) -> None:
        began_at = said_at = self._now()
        with httpx.Client(trust_env=False, timeout=2.0) as client:
            while True:
                try:
                    if client.get(url).is_success:
                        return
                except httpx.HTTPError:
                    pass
                now = self._now()
                if now - began_at > patience_s:
                    self._give_up(child, f"{child.name} did not answer within {patience_s:.0f} s")
                if now - said_at >= _SAY_EVERY_S:
                    said_at = now
                    say(f"{child.name}: starting, {now - began_at:.0f} s of at most {patience_s:.0f} s")
                self._pause()
                for one in self._children():
                    if one.process.poll() is not None:
                        self._give_up(one, f"{one.name} ended while starting (exit code {one.process.returncode})")

    def _announce(self, engine: Engine, plan: WorkerPlan, keys: Mapping[str, str]) -> None:
        base = f"http://{HOST}:{self._port}"
        token = f"in {ADMIN_TOKEN}"
        if not os.environ.get(ADMIN_TOKEN):
            token = f"in {locate_token_file(self._admin_port, os.environ)}"
        print(f"ready: {base}/v1, model {plan.model}, {len(self._workers)} {engine.value} workers")
        for tier, key in keys.items():
            print(f"  key for tier {tier + ':':<10}{key}")
        print("try it:")
        print(render_curl(self._port, plan.model, keys["priority"]))
        print(f"admin: http://{HOST}:{self._admin_port}/admin/v1/state, bearer token {token}")
        print(f"ledger: {self._record_folder}/ledger.db; see 'sluice report'")
        print(f"logs and configuration: {self._folder}; Ctrl-C drains and stops all of it", flush=True)

    # ---------------------------------------------------------------- watch and stop

    def _watch(self) -> NoReturn:
        lost: set[str] = set()
        while True:
            self._pause()
            gateway = self._gateway
            if gateway is not None and gateway.process.poll() is not None:
                self._give_up(gateway, f"the gateway ended (exit code {gateway.process.returncode}): stopping the rest")
            for other in self._others:
                if other.process.poll() is not None:
                    self._give_up(
                        other, f"{other.name} ended (exit code {other.process.returncode}): stopping the rest"
                    )
            if self._elastic is not None:
                self._elastic.step()
                continue
            for worker in self._workers:
                if worker.process.poll() is not None and worker.name not in lost:
                    lost.add(worker.name)
                    say(f"{worker.name} ended (exit code {worker.process.returncode}); the others go on. {worker.log}")
            if len(lost) == len(self._workers):
                self._give_up(self._workers[-1], "no worker is left: stopping the rest")

    def _pause(self) -> None:
        if self._word.wait(_LOOK_EVERY_S):
            self._word.clear()
            say("stopping: streams that run may finish; Ctrl-C again stops at once")
            raise _Stopped(0)

    def _give_up(self, child: Child, why: str) -> NoReturn:
        say(f"sluice: {why}")
        if tail := child.read_tail(8):
            say(tail)
        raise _Stopped(FAILED)

    def _children(self) -> list[Child]:
        return [*self._workers, *([self._gateway] if self._gateway is not None else [])]

    def _stop(self) -> None:
        """The gateway first, so that its streams find their workers; then whatever is left."""
        gateway = self._gateway
        if gateway is not None:
            gateway.signal(signal.SIGTERM)
            until = self._now() + _GATEWAY_PATIENCE_S
            while gateway.process.poll() is None and self._now() < until:
                if self._word.wait(0.05):
                    self._word.clear()
                    gateway.signal(signal.SIGTERM)
            gateway.kill_group()
            gateway.process.wait()
        workers = self._workers if self._elastic is None else self._elastic.fleet.children()
        for worker in (*self._others, *workers):
            worker.signal(signal.SIGTERM)
        for worker in (*self._others, *workers):
            worker.end(_WORKER_PATIENCE_S)
