"""The clerk's process: ``python -m service.clerk``, started by a gateway, told by lines of JSON on standard input.

The first line says which spool and database. Then ``{"terms": [HASH, DOCUMENT, SINCE_US]}`` is noted, and
``{"ask": N, ...}`` is answered by ``{"answer": N, ...}`` unless ``{"drop": N}`` came meanwhile; each change of state is
said as ``{"status": ...}`` on standard output. It ends when its input does, with its gateway however that ends, after
taking in what is left.
"""

import json
import logging
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable

from service.ledger.clerk import Clerk, read_config
from service.runtime.clock import MonotonicClock
from service.telemetry.logs import run_logs

_LEAVING_S = 9.0
_LOOK_S = 0.2
_READ = 65536


class _Desk:
    """Standard input and output as a gateway uses them."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(0, selectors.EVENT_READ)
        self._buffer = b""
        self._said = b""
        self.closed = False

    def read_lines(self, wait_s: float) -> list[bytes]:
        """What has come, after at most ``wait_s``."""
        while b"\n" not in self._buffer and not self.closed and self._selector.select(wait_s):
            data = os.read(0, _READ)
            self._buffer += data
            self.closed = not data
        *lines, self._buffer = self._buffer.split(b"\n")
        return lines

    def say(self, told: object) -> None:
        """One line; a gateway that has died does not hear it."""
        data = json.dumps(told).encode() + b"\n"
        try:
            os.write(1, data)
        except BrokenPipeError:
            self.closed = True

    def say_once(self, told: object) -> None:
        """One line, unless it is the one said last."""
        data = json.dumps(told).encode()
        if data != self._said:
            self._said = data
            self.say(told)


def _serve(clerk: Clerk, desk: _Desk, lines: list[bytes]) -> None:
    heard = [json.loads(line) for line in lines]
    dropped = {told["drop"] for told in heard if "drop" in told}
    for told in heard:
        if "terms" in told:
            clerk.note_terms(*told["terms"])
        elif "ask" in told and told["ask"] not in dropped:  # nobody waits for it any more
            desk.say({"answer": told["ask"], **clerk.answer(told)})


def run_clerk(wall: Callable[[], float]) -> None:
    """Work until standard input ends."""
    desk = _Desk()
    lines: list[bytes] = []
    while not lines and not desk.closed:
        lines = desk.read_lines(60.0)
    if not lines:
        return
    clerk = Clerk(read_config(lines[0]), wall)
    _serve(clerk, desk, lines[1:])
    while not desk.closed:
        pause_s = clerk.step()
        desk.say_once({"status": clerk.status})
        _serve(clerk, desk, desk.read_lines(pause_s))
    leave_at = wall() + _LEAVING_S
    pause_s = clerk.step()  # in any case: the last entries came after it had found nothing to do
    while not clerk.idle and clerk.fault is None and wall() < leave_at:
        time.sleep(min(pause_s, _LOOK_S))
        pause_s = clerk.step()
    clerk.close()


def main() -> int:
    """Run it. Signals to the group of a terminal are the gateway's business; its end is ours."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with run_logs("info", sys.stderr):
        logging.getLogger("alembic").setLevel(logging.WARNING)
        run_clerk(MonotonicClock().wall)
    return 0


if __name__ == "__main__":
    sys.exit(main())
