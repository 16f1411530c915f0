"""One real vLLM for the whole session, and what a client needs to talk to it or to a gateway in front of it.

``SLUICE_TEST_GATEWAY`` (and ``SLUICE_TEST_API_KEY``) point the SDK tests at a gateway; without them they talk to the
worker itself, which proves the tests.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.launch.cpu_engine import CpuEngine
from tests.support.engine_process import EngineProcess, prepare_engine_or_skip, run_cpu_worker

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


@pytest.fixture(scope="session")
def gateway_url(request: pytest.FixtureRequest) -> str:
    """The base URL under test, without ``/v1``."""
    if url := os.environ.get("SLUICE_TEST_GATEWAY"):
        return url.rstrip("/")
    worker: EngineProcess = request.getfixturevalue("cpu_worker")
    return worker.url


@pytest.fixture(scope="session")
def api_key() -> str:
    return os.environ.get("SLUICE_TEST_API_KEY", "unused")


@pytest.fixture(scope="session")
def model_name() -> str:
    return "MiniMax-M3.1-Flash"
