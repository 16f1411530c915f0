"""D26: no key ever appears, whatever is done with it, at debug level and with a line for every request."""

import hashlib
import json

import httpx
import pytest

from tests.support.service_process import (
    KEY,
    SUSPENDED_KEY,
    TOKEN,
    build_settings,
    find_ports,
    request_body,
    run_gateway,
    run_worker,
)

pytestmark = pytest.mark.integration

PROMPT = "CANARY-PROMPT-7f3a"
WORKER_SECRET = "CANARY-WORKER-KEY-55aa"
UNKNOWN = "sk-sluice-CANARYunknownCANARYunknownCANARY"
WRONG_PREFIX = "sk-proj-CANARYwrongprefixCANARYwrongprefix"
MALFORMED = "sk-sluice-CANARY malformed\tCANARY"
ALL = (KEY, SUSPENDED_KEY, UNKNOWN, WRONG_PREFIX)


def body(**more):
    return {**request_body(4, stream=False), "messages": [{"role": "user", "content": PROMPT}], **more}


def test_no_key_and_no_prompt_appears_anywhere(tmp_path):
    logs = {"level": "debug", "requests": "all"}
    with run_worker(tmp_path, "instant", "--api-key", WORKER_SECRET) as worker:
        settings = build_settings([worker.port], *find_ports(2))
        pool = {**settings["pool"], "api_key_env": "WORKER_KEY"}
        with run_gateway(tmp_path, [worker], {"WORKER_KEY": WORKER_SECRET}, logs=logs, pool=pool) as gateway:
            answers = []
            url = f"{gateway.url}/v1/chat/completions"
            with httpx.Client(trust_env=False) as client:
                for key in (*ALL, MALFORMED):
                    for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
                        answers.append(client.post(url, json=body(), headers=headers))
                        answers.append(client.get(f"{gateway.url}/v1/models", headers=headers))
                        answers.append(client.get(f"{gateway.url}/v1/none", headers=headers))
                for key in ALL:
                    answers.append(client.post(url, params={"api_key": key}, json=body()))
                    answers.append(client.get(f"{gateway.url}/v1/models", params={"key": key}))
                    answers.append(client.post(url, json=body(), headers={"authorization": key}))
                    answers.append(client.post(url, json=body(), headers={"authorization": f"Basic {key}"}))
                good = {"authorization": f"Bearer {KEY}"}
                answers.append(client.post(url, content=b"{broken", headers=good))
                answers.append(client.post(url, json=body(model="none"), headers=good))
                answers.append(client.post(url, json=body(temperature=-5), headers=good))
                fault = {"x-emulator-fault": "error-500"}
                answers.append(client.post(url, json=body(), headers={**good, **fault}))
                answers.append(client.get(f"{gateway.admin_url}/metrics"))
                answers.append(client.get(f"{gateway.admin_url}/admin/v1/state", headers=good))
            assert [answer.status_code for answer in answers].count(200) >= 4
            served = [answer for answer in answers if answer.status_code == 200]
            told = "".join(f"{answer.headers}{answer.text}" for answer in answers if answer not in served)
            told += "".join(str(answer.headers) for answer in served)
            unknown = {answer.text for answer in answers if answer.status_code == 401 and "v1/chat" in str(answer.url)}
            assert len(unknown) == 1, "one generic body, whatever was wrong with the key"
        written = gateway.text()
        secrets = [*ALL, "CANARY", PROMPT, WORKER_SECRET, TOKEN]
        secrets += [hashlib.sha256(key.encode()).hexdigest() for key in ALL]
        for secret in secrets:
            assert secret not in told, secret
            assert secret not in written, secret
        lines = [json.loads(line) for line in written.splitlines()]
        requests = [line for line in lines if line["logger"] == "sluice.request"]
        assert {line["outcome"] for line in requests} >= {"completed", "unauthenticated", "forbidden", "malformed"}
        assert all("request_id" in line and "tenant" in line for line in requests)
