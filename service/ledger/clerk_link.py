"""The gateway's end of its clerk: starts it, starts it again if it dies, asks it, hears how far the database is.

All of it on the loop. What the clerk does not answer within two seconds is not known.
"""

import asyncio
import contextlib
import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

_log = logging.getLogger("sluice.ledger")

_ANSWER_S = 2.0
_AGAIN_S = 2.0
_LEAVE_S = 10.0
_LINE_MAX = 4 * 1024 * 1024
COMMAND = (sys.executable, "-m", "service.clerk")


class ClerkLink:
    """One clerk for ``config``: database, spool, retention_months. Its state: ``seq`` is the last entry that is in the
    database, ``None`` while nobody knows; ``fault`` what keeps entries out of it."""

    def __init__(self, config: Mapping[str, Any], command: tuple[str, ...] = COMMAND) -> None:
        self._config = dict(config)
        self._command = command
        self._terms: tuple[str, str, int] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self._leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.seq: int | None = None
        self.fault: str | None = None

    def start(self) -> None:
        """Have it run from now on."""
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Let it take in what is left, within a bound, and wait for it."""
        self._leaving.set()
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
        if self._task is not None:
            _, late = await asyncio.wait({self._task}, timeout=_LEAVE_S)
            if late and process is not None:
                _log.warning("the clerk is still busy; what it has not taken waits in the spool")
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await asyncio.wait(late)

    def note_terms(self, config_hash: str, document: str, since_us: int) -> None:
        """Terms in force from ``since_us`` on; a clerk that is started later hears of them with the same date."""
        self._terms = (config_hash, document, since_us)
        self._say({"terms": self._terms})

    async def ask(self, tenant: str) -> dict[str, Any]:
        """This month's tallies of ``tenant``; ``{"fault": ...}`` where nobody knows."""
        if self._process is None:
            return {"fault": "the clerk is not running"}
        self._number += 1
        number = self._number
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._say({"ask": number, "tenant": tenant})
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await answer
        except TimeoutError:
            self._say({"drop": number})
            return {"fault": f"no answer within {_ANSWER_S:.0f} s"}
        finally:
            self._asked.pop(number, None)

    # ---------------------------------------------------------------- inside

    def _say(self, told: object) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(json.dumps(told).encode() + b"\n")

    async def _run(self) -> None:
        while not self._leaving.is_set():
            why = "the clerk has ended"
            try:
                await self._live()
            except OSError as error:  # no descriptors, no memory, no process to be had: that passes
                why = f"the clerk cannot be started: {error}"
            if not self._leaving.is_set():
                self.fault = why
                _log.error("%s; another starts in %.0f s, the spool keeps what comes", why, _AGAIN_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._leaving.wait(), _AGAIN_S)

    async def _live(self) -> None:
        """One clerk from its start to its end. Our secrets are none of its business."""
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LINE_MAX,
            env={name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")},
        )  # fmt: skip
        self._process = process
        self._say(self._config)
        if self._terms is not None:
            self._say({"terms": self._terms})
        try:
            if process.stdout is not None:
                async for line in process.stdout:
                    self._hear(json.loads(line))
            await process.wait()
        finally:
            self._process = None
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_result({"fault": "the clerk has ended"})

    def _hear(self, told: dict[str, Any]) -> None:
        if "status" in told:
            self.seq, self.fault = told["status"]["seq"], told["status"]["fault"]
            return
        answer = self._asked.get(told.pop("answer"))
        if answer is not None and not answer.done():
            answer.set_result(told)
