"""Keeps one loop turn's fault from ending the loop: the only place of this room that catches everything."""

import logging
from collections.abc import Awaitable, Callable

_LOG = logging.getLogger("sluice.workers")


async def run_guarded(what: str, step: Callable[[], Awaitable[None]]) -> bool:
    """Run ``step``; a fault is logged with its traceback and answered by ``False``. Cancelling passes through."""
    try:
        await step()
    except Exception:  # noqa: BLE001 - one turn's fault must not end the loop
        _LOG.exception("%s failed; going on", what)
        return False
    return True
