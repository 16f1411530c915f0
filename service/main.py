"""The composition root: runs one gateway from a file to its end."""

import asyncio
import functools
import gc
import logging
import secrets
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import uvloop

from service.gateway.admin import AdminGuard, build_admin
from service.gateway.admin_server import AdminServer
from service.house import House
from service.papers import Reread
from service.runtime.descriptors import raise_descriptor_limit
from service.runtime.sockets import open_listener
from service.settings.admin_token import obtain_token
from service.settings.build import CACHE_SALT, Plan, load_plan
from service.settings.fault import SettingsFault, SettingsRefusedError
from service.settings.tls import Certificates, listening_options
from service.telemetry.logs import run_logs

_log = logging.getLogger("sluice.main")

_BACKLOG = 4096


def run(path: Path, environment: Mapping[str, str], say: Callable[[str], None]) -> int:
    """Run one gateway from the file ``path`` to its end; the exit code. ``say`` gets what an operator must be told.

    Raises ``SettingsRefusedError`` for a configuration that cannot be used and ``OSError`` for an address that cannot
    be listened on.
    """
    salt = environment.get(CACHE_SALT, "").encode() or secrets.token_bytes(32)
    reread = functools.partial(load_plan, path, environment, salt)
    plan = reread()
    descriptors = raise_descriptor_limit()
    listen = plan.settings.listen
    public = open_listener(listen.host, listen.port, "listen.port")
    operators = open_listener(listen.admin_host, listen.admin_port, "listen.admin_port")
    # Only now: whoever holds these ports may have left a token of its own where ours goes.
    token, token_file = obtain_token(plan.settings.listen.admin_port, environment)
    if token_file is not None:
        say(f"admin token: in {token_file}")
    with run_logs(plan.settings.logs.level), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_gateway(plan, reread, token, descriptors, public, operators))
    if token_file is not None:
        token_file.unlink(missing_ok=True)
    return 0


async def run_gateway(
    plan: Plan, reread: Reread, token: str, descriptors: int, public: socket.socket, operators: socket.socket
) -> None:
    """Serve until a signal or an operator says otherwise, then leave in order."""
    loop = asyncio.get_running_loop()
    listen = plan.settings.listen
    certificates = None if listen.tls is None else Certificates(listen.tls.cert, listen.tls.key)
    house = House(plan, reread, descriptors, secrets.randbits(64))
    if oversold := house.hold_against_capacity(plan):
        raise SettingsRefusedError([SettingsFault("capacity", fault.removeprefix("capacity: ")) for fault in oversold])
    admin = AdminServer(AdminGuard(build_admin(house.desk, house.exposition.render), token), operators)
    admin.start()
    house.certificates = certificates
    if house.neighbours is not None:
        await house.neighbours.enter()
    house.server = await loop.create_server(
        house.factory, sock=public, backlog=_BACKLOG, **listening_options(certificates, plan.edge.head_timeout_s)
    )
    background = {asyncio.ensure_future(task) for task in house.background()}
    if house.costs is not None:
        background.add(asyncio.ensure_future(house.costs.run()))
    for task in background:
        task.add_done_callback(_tell_of_end)
    for beat in house.beats:
        beat.start()
    if house.record is not None:
        house.record.start()
    loop.add_signal_handler(signal.SIGTERM, house.desk.take_signal)
    loop.add_signal_handler(signal.SIGINT, house.desk.take_signal)
    loop.add_signal_handler(signal.SIGHUP, house.desk.begin_reload)
    gc.collect()
    gc.freeze()  # what lives as long as the process is not looked at again (measured: 4 % of the CPU otherwise)
    gc.set_threshold(20_000, 20, 50)
    _log.info("listening on %s:%d, admin on %s:%d", listen.host, listen.port, listen.admin_host, listen.admin_port)
    try:
        await house.drain.run(house.bounds)
    finally:
        for task in background:
            task.cancel()
        await asyncio.wait(background)
        if house.neighbours is not None:
            await house.neighbours.leave()
        await admin.stop()
        house.close()
        if house.record is not None:
            await house.record.close()
    _log.info("left")


def _tell_of_end(task: asyncio.Future[None]) -> None:
    """What runs beside the requests must not end before they do, least of all in silence."""
    if not task.cancelled() and (fault := task.exception()) is not None:
        _log.critical("a task of the background has ended: restart this gateway", exc_info=fault)
