"""Turns whatever the driver of Redis raises into one of the declared conditions."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from redis import exceptions

from service.domain.condition import Condition, StoreError

T = TypeVar("T")

_STEPS = 12
"""A call takes some five turns of the loop, a connection as many."""

_SPOKEN = (
    ("READONLY", Condition.READ_ONLY),
    ("MISCONF", Condition.READ_ONLY),
    ("NOREPLICAS", Condition.READ_ONLY),
    ("WRONGPASS", Condition.DENIED),
    ("NOAUTH", Condition.DENIED),
    ("NOPERM", Condition.DENIED),
    ("LOADING", Condition.AWAY),
    ("MASTERDOWN", Condition.AWAY),
    ("CLUSTERDOWN", Condition.AWAY),
)


async def bounded(call: Coroutine[Any, Any, T], limit_s: float) -> T:
    """The answer of ``call`` within ``limit_s``, looked for in steps: when our own loop is late, the answer may long be
    there, and it would be wrong to blame the store.

    Raises:
        StoreError: there is none, with the condition.
    """
    asked = asyncio.ensure_future(call)
    try:
        for _ in range(_STEPS):
            await asyncio.wait({asked}, timeout=limit_s / _STEPS)
            if asked.done():
                return asked.result()
    except (exceptions.TimeoutError, TimeoutError) as error:
        raise StoreError(Condition.SLOW, str(error)) from error
    except exceptions.RedisError as error:
        raise StoreError(classify(error), str(error)) from error
    except OSError as error:
        raise StoreError(Condition.AWAY, str(error)) from error
    finally:
        if not asked.done():
            asked.cancel()
            await asyncio.wait({asked})
    raise StoreError(Condition.SLOW, f"no answer within {limit_s * 1000:.0f} ms")


def classify(error: exceptions.RedisError) -> Condition:
    """Which way of failing this is."""
    if isinstance(error, exceptions.ReadOnlyError):
        return Condition.READ_ONLY
    if isinstance(error, exceptions.AuthenticationError | exceptions.NoPermissionError):
        return Condition.DENIED
    text = str(error).upper()
    for word, condition in _SPOKEN:
        if word in text:
            return condition
    return Condition.AWAY if isinstance(error, exceptions.ConnectionError) else Condition.FAILED
