"""What is remembered of decisions, and how it is shown."""

import json
import math
import sys
import time
import timeit
from dataclasses import replace

import pytest

from service.domain.command import Dispatch, Enqueue, Revoke
from service.domain.event import FirstTokenSeen, PermitEnded, RequestArrived, Woken, WorkerLoadSeen
from service.domain.load import WorkerLoad
from service.domain.outcome import Outcome
from service.domain.permit import PermitEnding
from service.domain.tier import Tier
from service.flow.config import FlowConfig
from service.runtime.account import Settlement
from service.runtime.decisions import DecisionLog
from service.runtime.journal import decode_record, hash_config
from tests.support.flow import build_request

CONFIG = FlowConfig(tiers={"standard": Tier("standard", 1)})


def build_log(length=8):
    return DecisionLog(length, CONFIG, 1000.0)


def arrive(log, name, at=1.0):
    record = (at, RequestArrived(build_request(name)), [Dispatch(name, "a", 1)])
    log.observe(*record)
    return record


def test_newest_first_and_no_more_than_asked_for():
    log = build_log()
    for number in range(10):
        arrive(log, f"r{number}", float(number))
    shown = log.describe(None, 3)
    assert [one["at"] for one in shown["decisions"]] == [9.0, 8.0, 7.0]
    assert shown["tiers"] == {"standard": 1}
    assert shown["config_hash"] == hash_config(CONFIG)
    assert shown["decisions"][0]["wall"] == "1970-01-01T00:16:49.000+00:00"
    assert len(log.describe(None, 100)["decisions"]) == 8, "bounded"


def test_one_request_in_order_with_its_ending():
    log = build_log()
    first = arrive(log, "r")
    arrive(log, "s", 1.5)
    log.observe(2.0, RequestArrived(build_request("t")), [Enqueue("t", 1), Revoke("r", Outcome.REVOKED)])
    last = (3.0, PermitEnded("r", PermitEnding.DROPPED), [])
    log.observe(*last)
    settlement = Settlement("r", "chat", 1.0)
    settlement.outcome = Outcome.REVOKED
    log.settle(settlement)
    shown = log.describe("r", 1)
    assert [one["at"] for one in shown["decisions"]] == [1.0, 2.0, 3.0]
    assert decode_record(json.dumps(shown["decisions"][0]).encode()) == first
    assert shown["ending"]["outcome"] == "revoked"
    assert log.describe("none", 1)["decisions"] == []


def test_figures_and_alarms_push_nothing_out():
    log = build_log(2)
    arrive(log, "r")
    for _ in range(5):
        log.observe(2.0, WorkerLoadSeen("a", WorkerLoad(2.0)), [])
        log.observe(2.0, Woken(), [])
    assert len(log.describe("r", 1)["decisions"]) == 1
    log.observe(3.0, WorkerLoadSeen("a", WorkerLoad(math.nan)), [Dispatch("s", "a", 1)])
    (one,) = log.describe("s", 1)["decisions"]
    assert one["event"][1]["load"]["observed_at"] is None, "strict JSON has no NaN"


def test_clients_ids_are_known_for_a_while():
    log = build_log(2)
    arrive(log, "ours")
    log.note_alias(b"theirs", "ours")
    assert log.describe("theirs", 1)["request_id"] == "ours"
    assert log.describe("theirs", 1)["client_request_id"] == "theirs"
    log.note_alias(b"ours", "elsewhere")
    assert log.describe("ours", 1)["request_id"] == "ours", "our own name comes first"
    log.note_alias(b"third", "x")
    assert log.describe("theirs", 1)["decisions"] == [], "bounded"


def test_each_decision_names_the_config_it_followed():
    log = build_log()
    other = replace(CONFIG, queued_requests_max=3)
    arrive(log, "r", 1.0)
    log.note_config(other, 2.0)
    arrive(log, "s", 3.0)
    assert [one["config_hash"] for one in log.describe(None, 9)["decisions"]] == [
        hash_config(other), hash_config(CONFIG),
    ]  # fmt: skip


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer is paid for with every line")
def test_cost_per_request():
    log = build_log(4096)
    arrived, first = RequestArrived(build_request("r")), FirstTokenSeen("r")
    ended, settlement = PermitEnded("r", PermitEnding.SERVED), Settlement("r", "chat", 0.0)
    sent = [Dispatch("r", "a", 1)]

    def one():
        log.observe(1.0, arrived, sent)
        log.observe(2.0, first, [])
        log.observe(3.0, ended, [])
        log.settle(settlement)

    assert min(timeit.repeat(one, timer=time.process_time, number=2000, repeat=9)) / 2000 < 3e-6, (
        "0.3 us on a quiet machine; ten times that here"
    )
