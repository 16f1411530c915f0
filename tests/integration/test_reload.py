"""A configuration is read again while requests run: whole or not at all."""

import asyncio
import signal
import threading
import time

import httpx
import pytest
import yaml

from service.house import House
from service.settings.build import build_plan, load_settings
from tests.support.service_process import (
    KEY,
    SUSPENDED_KEY,
    Process,
    build_settings,
    hash_of,
    request_body,
    run_gateway,
    run_worker,
)

pytestmark = pytest.mark.integration
NEW_KEY = "sk-sluice-NewwNewwNewwNewwNewwNewwNewwNeww"


def call(gateway: Process, key: str) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    body = request_body(2, stream=False)
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers, trust_env=False, timeout=10)


def edit(gateway: Process, change) -> None:
    assert gateway.config is not None
    settings = yaml.safe_load(gateway.config.read_text())
    change(settings)
    gateway.config.write_text(yaml.safe_dump(settings))


def test_reload(tmp_path):
    with (
        run_worker(tmp_path, "instant") as one,
        run_worker(tmp_path, "instant") as two,
        run_gateway(tmp_path, [one]) as gateway,
    ):
        assert call(gateway, KEY).status_code == 200
        assert call(gateway, NEW_KEY).status_code == 401
        assert call(gateway, SUSPENDED_KEY).status_code == 403

        def grow(settings):
            settings["tenants"][0]["keys"] = [hash_of(NEW_KEY)]
            settings["tenants"][1]["suspended"] = False
            settings["pool"]["workers"].append(f"http://127.0.0.1:{two.port}")
            settings["limits"]["queued_requests_max"] = 7
            settings["limits"]["first_token_s"] = 33.0
            settings["listen"]["port"] = 26999
            settings["cors_origins"] = ["https://app.example.com"]
            settings["tiers"]["spare"] = {"rank": 5, "best_effort": True}

        edit(gateway, grow)
        answer = gateway.admin("POST", "/admin/v1/config/reload")
        assert answer.status_code == 200
        assert answer.json() == {"status": "applied", "needs_restart": ["listen.port"]}
        assert call(gateway, NEW_KEY).status_code == 200
        assert call(gateway, KEY).status_code == 401
        assert call(gateway, SUSPENDED_KEY).status_code == 200
        assert gateway.admin("GET", "/admin/v1/queues").json()["queued_requests_max"] == 7
        until = time.monotonic() + 5
        while len([w for w in gateway.admin("GET", "/admin/v1/workers").json()["workers"] if w["healthy"]]) < 2:
            assert time.monotonic() < until
        preflight = httpx.options(
            f"{gateway.url}/v1/models",
            headers={"origin": "https://app.example.com", "access-control-request-method": "GET"},
            trust_env=False,
        )
        assert preflight.headers["access-control-allow-origin"] == "https://app.example.com"

        edit(gateway, lambda settings: settings["tenants"][0].update(tier="gone", colour="red"))
        answer = gateway.admin("POST", "/admin/v1/config/reload")
        assert answer.status_code == 422
        faults = answer.json()["error"]["faults"]
        assert len(faults) == 2
        assert call(gateway, NEW_KEY).status_code == 200, "what was in force stays in force"

        edit(gateway, lambda settings: settings["tenants"][0].update(tier="spare", keys=[hash_of(KEY)]))
        edit(gateway, lambda settings: settings["tenants"][0].pop("colour"))
        gateway.signal(signal.SIGHUP)
        until = time.monotonic() + 5
        while call(gateway, KEY).status_code != 200:
            assert time.monotonic() < until
        assert call(gateway, KEY).headers["x-sluice-tier"] == "spare"
        figures = gateway.admin("GET", "/metrics").text.splitlines()
        assert any(
            'tier="spare"' in line and 'outcome="completed"' in line and float(line.split()[1]) >= 1 for line in figures
        )
        assert gateway.admin("GET", "/admin/v1/config").json()["needs_restart"] == ["listen.port"]
        assert "reload refused" in gateway.text()


async def test_the_loop_goes_on_while_the_file_is_read(tmp_path):
    settings = build_settings([1], 26998, 26999)
    plan = build_plan(load_settings(yaml.safe_dump(settings), {}), {}, b"salt")
    went_on = threading.Event()

    def reread():
        assert went_on.wait(5), "the loop stood still while the file was read"
        return plan

    house = House(plan, reread, 4096, seed=1)
    try:
        reading = asyncio.ensure_future(house.desk.reload())
        await asyncio.sleep(0.01)
        second = asyncio.ensure_future(house.desk.reload())
        went_on.set()
        assert await reading == ([], [])
        assert await second == ([], [])
    finally:
        house.close()
