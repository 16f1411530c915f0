"""What the record takes for promised: of the file, of the shared store, and after a reload."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.domain.contract import Contract
from service.domain.tenant import Tenant
from service.ledger.report import _Promises
from service.record import Record
from service.settings.build import build_plan, load_settings

EXAMPLE = Path(__file__).parents[2] / "deploy" / "sluice.example.yaml"
KNOWN = {"beta": Tenant("beta", "priority", contract=Contract(60, credits="none", fingerprint="f" * 12))}


class Clerk:
    """Notes what it is told."""

    seq, fault = 0, None

    def __init__(self):
        self.told, self.dated = {}, []

    def note_terms(self, config_hash, document, since_us):
        self.dated.append(since_us)
        self.told[config_hash] = json.loads(document)


def build(text):
    return build_plan(load_settings(text, {}), {}, b"salt")


@pytest.fixture
def kept():
    plan = build(EXAMPLE.read_text())
    bookkeeper = SimpleNamespace(terms=None, spool_bytes=1_900_000_000, seq=0, pending=0, lost=0, flush=None)
    clock = SimpleNamespace(now=lambda: 0.0, wall=lambda: 7.0)
    clerk = Clerk()
    return Record(plan, clock, None, bookkeeper, clerk, KNOWN.get), bookkeeper, clerk


def steps_of(clerk, bookkeeper, tenant):
    promises = _Promises([clerk.told[bookkeeper.terms.config_hash]])
    return [step.credit for step in promises.find(tenant, "priority").ladder.steps]


def test_tenants_of_the_store_have_the_standard_ladder_or_the_one_that_is_noted(kept):
    record, bookkeeper, clerk = kept
    assert steps_of(clerk, bookkeeper, "beta") == steps_of(clerk, bookkeeper, "acme") != []
    before = bookkeeper.terms.config_hash
    record.note_ladders({"beta": "none"})
    assert steps_of(clerk, bookkeeper, "beta") == []
    assert steps_of(clerk, bookkeeper, "another") != []
    assert bookkeeper.terms.config_hash != before
    assert clerk.dated == [7_000_000] * 2
    assert bookkeeper.terms.contracts.get("beta") == "f" * 12
    assert len(bookkeeper.terms.contracts.get("acme")) == 12
    assert bookkeeper.terms.contracts.get("nobody") is bookkeeper.terms.contracts.get(None) is None


def test_terms_of_old_know_no_ladders():
    document = {
        "tiers": {"priority": {"availability": 0.9, "attainment": 0.9, "ttft": {}, "tpot_s": None}},
        "tenants": {},
    }
    assert _Promises([document]).find("beta", "priority").ladder.steps == ()


def test_a_reload_leaves_to_the_next_start_what_needs_one(kept):
    record, bookkeeper, clerk = kept
    text = EXAMPLE.read_text()
    other = text.replace("model: MiniMax-M3.1-Flash", "model: Other").replace(
        "retention_months: 13", "retention_months: 13\n  spool_max_bytes: 10737418240"
    )
    assert other != text
    bound = record.read_figures().spool_bytes_max
    plan = build(other)
    assert plan.settings.record.spool_max_bytes != bound
    record.reconfigure(replace(plan))
    assert record.read_figures().spool_bytes_max == bound
    assert bookkeeper.terms.model == clerk.told[bookkeeper.terms.config_hash]["model"] == "MiniMax-M3.1-Flash"
