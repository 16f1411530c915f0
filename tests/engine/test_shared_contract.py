"""The real vLLM keeps the contract the emulated worker is held to: the same checks, so neither can drift alone."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.conformance import worker_contract as contract
from tests.support.engine_process import EngineProcess


@pytest.fixture(scope="module")
def subject(cpu_worker: EngineProcess, model_name: str) -> Iterator[Any]:
    with httpx.Client(base_url=cpu_worker.url, timeout=30) as client:
        yield contract.Subject(client, model_name)


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_contract(subject: Any, check: Callable[[Any], None]) -> None:
    check(subject)
