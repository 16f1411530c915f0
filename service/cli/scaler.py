"""``sluice scaler``: publishes how many workers a pool should have, or prints what makes an autoscaler follow it."""

import asyncio
import json
import signal
from typing import Annotated

import typer
import yaml
from prometheus_client import start_http_server

from service.cli.options import BAD_INPUT, FileOption, choose_file, fail, say, tell_faults
from service.runtime.clock import MonotonicClock
from service.scaler.config import SteeringConfig, derive_budgets
from service.scaler.loop import build_client, run
from service.scaler.page import Bulletin, Page
from service.scaler.scaled_object import build_scaled_object
from service.scaler.source import Prometheus, SourceError
from service.scaler.steering import decide, describe, find_step
from service.settings.build import load_tiers
from service.settings.fault import SettingsRefusedError
from service.slo.forecast import ForecastConfig
from service.slo.scaling import ScalingConfig
from service.telemetry.logs import run_logs

CONTROL_DELAY_S = 60.0
"""From a decision to a worker that begins to start: KEDA's polling, HPA's sync, the scheduler."""


def scaler(
    config: FileOption = None,
    prometheus: Annotated[str, typer.Option(help="URL of Prometheus.")] = "http://127.0.0.1:9090",
    pool: Annotated[str, typer.Option(help="Name of the pool, a label of what is published.")] = "default",
    selector: Annotated[str, typer.Option(help='Label matchers of the gateways\' series, as job="sluice".')] = "",
    least: Annotated[int, typer.Option(min=1, help="Workers that stay whatever happens.")] = 1,
    most: Annotated[int, typer.Option(min=1, help="Workers that there may be.")] = 8,
    cold_start_s: Annotated[float, typer.Option(min=0.1, help="P95 from start to first token, measured.")] = 600.0,
    step_s: Annotated[
        float, typer.Option(min=0.1, help="A decision is made so often; all else scales with it.")
    ] = 30.0,
    host: Annotated[str, typer.Option(help="Where figures are served.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the figures.")] = 8083,
    once: Annotated[bool, typer.Option("--once", help="Decide once, print it as JSON, and end.")] = False,
    scaled_object: Annotated[
        str | None, typer.Option(help="Print the KEDA ScaledObject for this deployment, and end.")
    ] = None,
) -> None:
    """Publish how many workers the pool should have. Any number of scalers may run: they say the same.

    Examples:  sluice scaler -c sluice.yaml --selector 'job="sluice"' --most 16
               sluice scaler -c sluice.yaml --once
               sluice scaler --scaled-object m3-workers --prometheus http://prometheus.monitoring:9090
    """
    if least > most:
        fail(f"--least {least} is more than --most {most}: give a smaller --least or a greater --most", BAD_INPUT)
    if scaled_object is not None:
        manifest = build_scaled_object(scaled_object, scaled_object, pool, prometheus, least, most)
        print(yaml.safe_dump(manifest, sort_keys=False), end="")
        return
    path = choose_file(config)
    try:
        tiers = load_tiers(path)
    except SettingsRefusedError as refused:
        tell_faults(path, refused)
    try:
        steering = build_config(pool, selector, least, most, cold_start_s, step_s)
    except ValueError as error:
        fail(str(error), BAD_INPUT)
    steering = SteeringConfig(
        steering.pool, steering.selector, derive_budgets(tiers), steering.scaling, steering.step_s, steering.fresh_s,
        steering.lag_s,
    )  # fmt: skip
    if once:
        _decide_once(steering, prometheus)
        return
    with run_logs("info"):
        asyncio.run(_serve(steering, prometheus, host, port))


def build_config(pool: str, selector: str, least: int, most: int, cold_start_s: float, step_s: float) -> SteeringConfig:
    """Everything that is not said is in proportion to a step of 30 s, so that a day can be watched in minutes."""
    pace = step_s / 30.0
    scaling = ScalingConfig(
        workers_least=least,
        workers_most=most,
        lead_s=cold_start_s + CONTROL_DELAY_S * pace,
        forecast=ForecastConfig(cell_s=60.0 * pace),
        queue_drain_s=60.0 * pace,
        hold_s=1800.0 * pace,
        slot_s=300.0 * pace,
    )
    return SteeringConfig(pool, selector, {}, scaling, step_s, 2.0 * step_s, min(5.0, step_s / 2.0))


def _decide_once(config: SteeringConfig, url: str) -> None:
    async def ask() -> dict[str, object]:
        async with build_client() as client:
            at = find_step(config, MonotonicClock().wall())
            return describe(await decide(config, Prometheus(url, client), at))

    try:
        print(json.dumps(asyncio.run(ask()), indent=1))
    except SourceError as error:
        fail(str(error))


async def _serve(config: SteeringConfig, url: str, host: str, port: int) -> None:
    bulletin = Bulletin(config.pool, MonotonicClock().wall)
    try:
        server, thread = start_http_server(port, host, Page([bulletin]).registry)
    except OSError as error:
        fail(f"port {port} on {host}: {error.strerror or error}")
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    say(f"pool {config.pool}: figures at http://{host}:{port}/metrics, read from {url}")
    try:
        await run(config, url, bulletin, stop)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
