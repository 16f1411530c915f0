"""Calibration over real sockets: an emulated worker in the place of the engine. The mechanics, not the figures."""

import asyncio
import json
import sys
from dataclasses import replace

import pytest

from service.emulator.profile_file import dump_profile
from service.emulator.profiles import CPU_SMALL

pytestmark = pytest.mark.integration


async def start(*argv):
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )


@pytest.fixture
async def worker_url():
    process = await start("service.emulator", "--port", "0", "--profile", "cpu-small")
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
        yield line.split()[3]
    finally:
        process.terminate()
        await process.wait()


async def test_a_worker_is_measured_fitted_and_judged(worker_url, tmp_path):
    calibrate = ("loadtests.calibration.run", "--worker", worker_url, "--quick", "--seconds", "2", "--load", "0.5")
    process = await start(*calibrate, "--limit", "5", "--out", str(tmp_path))
    text = (await asyncio.wait_for(process.communicate(), 100))[0].decode()
    assert process.returncode == 0, text
    record = json.loads((tmp_path / "calibration.json").read_text())
    assert record["engine"]["block_size"] == CPU_SMALL.block_size
    assert record["engine"]["context_tokens"] == CPU_SMALL.max_model_len
    assert record["runs"][0]["requests"] > 0
    assert record["runs"][0]["foreign_cores"] is None, "whose processor time it is cannot be known"
    # An engine of one step a second cannot have given these answers, however slow the machine is.
    wrong = tmp_path / "wrong.json"
    wrong.write_text(dump_profile(replace(CPU_SMALL, cost=replace(CPU_SMALL.cost, base_s=1.0)), {}))
    process = await start(*calibrate, "--seconds", "30", "--judge", str(wrong), "--out", str(tmp_path))
    text = (await asyncio.wait_for(process.communicate(), 100))[0].decode()
    assert process.returncode == 1, text
    assert "NOT honest" in text


async def test_what_is_no_worker_is_told(tmp_path):
    process = await start("loadtests.calibration.run", "--worker", "http://127.0.0.1:9", "--out", str(tmp_path))
    text = (await asyncio.wait_for(process.communicate(), 60))[0].decode()
    assert process.returncode == 1
    assert "no vLLM worker" in text
