"""One real vLLM for the whole session, and what a client needs to talk to it or to a gateway in front of it.

The SDK tests talk to a gateway process that the session starts in front of that worker. ``SLUICE_TEST_GATEWAY`` (and
``SLUICE_TEST_API_KEY``) point them at another one; with ``SLUICE_TEST_DIRECT`` they talk to the worker itself, which
tells a fault of the gateway from one of the test.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.launch.cpu_engine import CpuEngine
from tests.support.engine_process import EngineProcess, prepare_engine_or_skip, run_cpu_worker
from tests.support.service_process import KEY, run_gateway

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here; the time limit is for the tests, as building and starting have limits of their own."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.timeout(120, func_only=True))


@pytest.fixture(scope="session")
def cpu_engine() -> CpuEngine:
    return prepare_engine_or_skip()


@pytest.fixture(scope="session")
def cpu_worker(cpu_engine: CpuEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with run_cpu_worker(cpu_engine, tmp_path_factory.mktemp("vllm") / "vllm.log") as process:
        yield process


@dataclass(frozen=True)
class Front:
    """What clients talk to: its base URL without ``/v1``, and a key."""

    url: str
    key: str


@pytest.fixture(scope="session")
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A gateway process in front of the real worker, unless ``SLUICE_TEST_GATEWAY`` names another."""
    if url := os.environ.get("SLUICE_TEST_GATEWAY"):
        yield Front(url.rstrip("/"), os.environ.get("SLUICE_TEST_API_KEY", "unused"))
        return
    worker: EngineProcess = request.getfixturevalue("cpu_worker")
    if os.environ.get("SLUICE_TEST_DIRECT"):
        yield Front(worker.url, "unused")
        return
    with run_gateway(tmp_path_factory.mktemp("gateway"), [worker]) as gateway:
        yield Front(gateway.url, KEY)


@pytest.fixture(scope="session")
def gateway_url(front: Front) -> str:
    """The base URL under test, without ``/v1``."""
    return front.url


@pytest.fixture(scope="session")
def api_key(front: Front) -> str:
    return front.key


@pytest.fixture(scope="session")
def model_name() -> str:
    return "MiniMax-M3.1-Flash"
