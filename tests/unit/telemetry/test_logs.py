"""Log lines: JSON, in order, without keys, never waiting for whoever reads them."""

import io
import json
import logging
import threading

import pytest

from service.domain.outcome import Fault, Outcome
from service.domain.units import RequestId, TenantId, TierName
from service.runtime.account import Settlement
from service.telemetry.logs import JsonFormatter, RequestLog, run_logs, set_level


def settle(outcome: Outcome) -> Settlement:
    settlement = Settlement(RequestId("r1"), "chat_completions", 10.0)
    settlement.tenant_id, settlement.tier = TenantId("acme"), TierName("flex")
    settlement.outcome, settlement.settled_at = outcome, 10.1234567
    return settlement


def write(which: str, level: str, *outcomes: Outcome) -> list[dict[str, object]]:
    out = io.StringIO()
    log = RequestLog(which)
    with run_logs(level, out):
        for outcome in outcomes:
            log.settle(settle(outcome))
        log.settle(Settlement(RequestId("open"), "chat_completions", 0.0))
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_one_line_per_request_with_what_is_known():
    (line,) = write("all", "info", Outcome.COMPLETED)
    assert line["request_id"] == "r1"
    assert line["tenant"] == "acme"
    assert line["outcome"] == "completed"
    assert line["total_s"] == 0.123457
    assert line["level"] == "info"
    assert line["at"].endswith("Z")


@pytest.mark.parametrize("outcome", Outcome)
def test_by_default_only_our_own_failures_are_told(outcome):
    ours = outcome.fault in (Fault.US, Fault.CAPACITY)
    assert len(write("failures", "info", outcome)) == ours
    assert len(write("all", "info", outcome)) == 1
    assert write("none", "debug", outcome) == []


def test_the_level_holds_for_request_lines_too():
    assert write("all", "error", Outcome.COMPLETED, Outcome.WORKER_FAILED) == []
    assert len(write("all", "warning", Outcome.COMPLETED, Outcome.WORKER_FAILED)) == 1


def test_a_key_that_got_into_a_message_or_a_trace_is_blotted_out():
    out = io.StringIO()
    with run_logs("debug", out):
        try:
            int("sk-sluice-CANARY-in-trace")
        except ValueError:
            logging.getLogger("sluice.x").exception("bad key %s", "sk-proj-CANARY_in_message")
    line = json.loads(out.getvalue())
    assert "CANARY" not in out.getvalue()
    assert "ValueError" in line["trace"]
    assert line["message"] == "bad key sk-***"


def test_libraries_speak_only_of_trouble():
    out, before = io.StringIO(), logging.getLogger("sluice").level
    with run_logs("debug", out):
        for name in ("httpx", "httpcore.http11", "uvicorn.error", "asyncio"):
            logging.getLogger(name).info("headers: secret")
        logging.getLogger("httpx").warning("trouble")
        logging.getLogger("sluice.x").debug("ours")
        set_level("error")
        logging.getLogger("sluice.x").warning("not any more")
    assert [json.loads(line)["message"] for line in out.getvalue().splitlines()] == ["trouble", "ours"]
    assert logging.getLogger("sluice").level == before


class _Stuck(io.StringIO):
    """A reader of standard error that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()

    def write(self, text: str) -> int:
        self.go_on.wait(20)
        return super().write(text)


def test_a_reader_that_stops_costs_lines_and_no_time(monkeypatch):
    monkeypatch.setattr("service.telemetry.logs._QUEUED_LINES_MAX", 10)
    out = _Stuck()
    log = logging.getLogger("sluice.x")
    with run_logs("info", out):
        for number in range(50):  # would wait for ever if the queue did
            log.info("line %d", number)
        out.go_on.set()
        while "line 9" not in out.getvalue():
            pass
        log.info("after")
    messages = [json.loads(line)["message"] for line in out.getvalue().splitlines()]
    assert messages[0] == "line 0"
    assert messages[-1] == "after"
    assert any(message.endswith("lines were dropped") for message in messages)
    assert len(messages) < 20


def test_a_plain_record_is_rendered():
    record = logging.LogRecord("n", logging.INFO, "", 0, "hello %s", ("you",), None)
    record.fields = {"a": {1, 2}.__class__}
    assert json.loads(JsonFormatter().format(record))["message"] == "hello you"
