"""``sluice prober``: a synthetic request per tier, through the front door, again and again."""

import asyncio
import json
import os
import signal
import ssl
from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import BAD_INPUT, FAILED, fail, say, tell_faults
from service.prober.figures import ProbeFigures, serve_figures
from service.prober.probe import ProbeTarget
from service.prober.rounds import probe_forever, probe_once
from service.rulebook.sources import read_sources
from service.settings.fault import SettingsRefusedError
from service.telemetry.logs import run_logs

KEY_PREFIX = "SLUICE_PROBE_KEY_"


def prober(
    model: Annotated[str, typer.Option(help="Model to ask for.")],
    url: Annotated[str, typer.Option(help="The gateway, as customers reach it.")] = "http://127.0.0.1:8080",
    objectives: Annotated[Path, typer.Option("--dir", help="Folder with objectives/; its promises are held.")] = Path(
        "slo"
    ),
    ca: Annotated[
        Path | None, typer.Option("--ca", help="PEM file: whose certificates to trust, not the system's.")
    ] = None,
    interval_s: Annotated[float, typer.Option(min=1.0, max=3600.0, help="Between two probes of a tier.")] = 10.0,
    limit_s: Annotated[float, typer.Option(min=0.1, max=600.0, help="A probe that takes longer is bad.")] = 60.0,
    host: Annotated[str, typer.Option(help="Address for scrapes.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port for scrapes.")] = 8084,
    once: Annotated[bool, typer.Option("--once", help="One probe per tier; exit code 1 if one is bad.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print JSON for a script.")] = False,
) -> None:
    """Probe each tier of which there is a key: SLUICE_PROBE_KEY_PRIORITY for the tier priority, and so on.

    The keys belong to tenants that the gateway's configuration calls synthetic, one per tier.

    Example:  SLUICE_PROBE_KEY_PRIORITY=sk-sluice-... sluice prober --model MiniMax-M3.1-Flash --once
    """
    targets = _find_targets(objectives, url.rstrip("/"), model, limit_s, _read_trust(ca))
    if once:
        results = asyncio.run(probe_once(targets))
        if as_json:
            print(json.dumps([{"tier": t.tier, "fault": r.fault, "ttft_s": r.ttft_s} for t, r in results]))
        else:
            for target, result in results:
                print(f"{target.tier:<12}{result.fault or f'good, first token after {result.ttft_s:.3f} s'}")
        raise typer.Exit(FAILED if any(result.fault for _, result in results) else 0)
    figures = ProbeFigures(target.tier for target in targets)
    try:
        serve_figures(figures, host, port)
    except OSError as error:
        fail(f"port {port} of {host} cannot be listened on: {error.strerror}")
    say(f"probing {', '.join(target.tier for target in targets)} at {url}; figures on {host}:{port}")
    with run_logs("info"):
        asyncio.run(_probe_until_told(targets, figures, interval_s))


async def _probe_until_told(targets: list[ProbeTarget], figures: ProbeFigures, interval_s: float) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    await probe_forever(targets, figures, interval_s, stopped)


def _read_trust(ca: Path | None) -> ssl.SSLContext | bool:
    if ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        fail(f"--ca {ca}: {error.strerror or error}: give a readable PEM file with certificates", BAD_INPUT)


def _find_targets(
    folder: Path, url: str, model: str, limit_s: float, trust: ssl.SSLContext | bool
) -> list[ProbeTarget]:
    try:
        tiers = read_sources(folder).tiers
    except SettingsRefusedError as refused:
        tell_faults(folder, refused)
    targets = []
    for tier in tiers:
        key = os.environ.get(name_key(tier.tier))
        if key:
            promised = tier.ttft_targets_s[0][1] if tier.ttft_targets_s else None
            targets.append(ProbeTarget(tier.tier, url, model, key, promised, limit_s, trust))
    if not targets:
        names = " or ".join(name_key(tier.tier) for tier in tiers)
        fail(f"there is no key to probe with: put one of a synthetic tenant into {names}", BAD_INPUT)
    return targets


def name_key(tier: str) -> str:
    """Name of the variable with a tier's key."""
    return KEY_PREFIX + tier.upper().replace("-", "_")
