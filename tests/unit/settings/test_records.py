"""What the store keeps of tenants and keys, written and read again."""

from dataclasses import replace

import pytest

from service.domain.contract import Allowance, Contract, Excess, Ramp
from service.domain.mark import Mark
from service.domain.tenant import Tenant
from service.settings.records import KeyRecord, find_ladders, read_records, write_key, write_tenant
from service.settings.sold import TenantSettings

CONTRACT = {"requests_per_minute": 6, "worker_seconds_rate": 1.5, "worker_seconds_burst": 3.0}


def as_bytes(*records):
    return [(name, text.encode()) for name, text in records]


@pytest.mark.parametrize(("ramp", "read"), [({}, Ramp(2.0, 300.0, 0.1)), ({"growth": 3}, Ramp(3.0, 300.0, 0.1))])
def test_a_ramp_clause_is_read_again(ramp, read):
    tenant = TenantSettings.model_validate({"id": "acme", "tier": "gold", "contract": {**CONTRACT, "ramp": ramp}})
    found = read_records(as_bytes(write_tenant(tenant)), ["gold"])
    assert found.refused == []
    assert found.tenants["acme"].contract.work == Allowance(1.5, 3.0, ramp=read)


def test_what_is_written_is_read_again():
    sold = TenantSettings.model_validate({"id": "acme", "tier": "gold", "contract": CONTRACT, "excess": "run"})
    same = TenantSettings.model_validate({"id": "beta", "tier": "gold", "contract": CONTRACT, "excess": "run"})
    prober = TenantSettings.model_validate(
        {"id": "probe", "tier": "flex", "synthetic": True, "suspended": True, "models": ["m"]}
    )
    key = KeyRecord(id="0123abcd", tenant="acme", prefix="sk-sluice-abcd", created_at=1.0, expires_at=9.0)
    digest = b"\1" * 32
    records = as_bytes(write_tenant(sold), write_tenant(same), write_tenant(prober), write_key(digest, key))
    found = read_records(records, ["gold", "flex"])
    contract = replace(found.tenants["acme"].contract, fingerprint=None)
    assert contract == Contract(6, work=Allowance(1.5, 3.0), excess=Excess.RUN, credits="standard")
    contract = found.tenants["acme"].contract
    assert len(contract.fingerprint) == 12
    assert found.tenants["acme"] == Tenant("acme", "gold", contract=contract)
    assert found.tenants["beta"].contract is found.tenants["acme"].contract
    assert found.tenants["probe"] == Tenant(
        "probe", "flex", True, frozenset(("m",)), marks=frozenset((Mark.SYNTHETIC,))
    )
    assert found.keys == {digest: ("acme", 9.0)}
    assert found.refused == []


def test_another_ladder_of_credits_is_part_of_what_is_kept():
    plain = TenantSettings.model_validate({"id": "plain", "tier": "gold"})
    without = TenantSettings.model_validate({"id": "without", "tier": "gold", "credits": "none"})
    own = TenantSettings.model_validate({"id": "own", "tier": "gold", "contract": CONTRACT, "credits": "steep"})
    found = read_records(as_bytes(*map(write_tenant, (plain, without, own))), ["gold"])
    assert find_ladders(found.tenants) == {"without": "none", "own": "steep"}
    assert found.tenants["plain"].contract is None
    assert not found.tenants["without"].contract.limited
    prints = {found.tenants[name].contract.fingerprint for name in ("without", "own")}
    assert len(prints) == 2


def test_what_cannot_be_read_is_told_and_what_is_gone_is_gone():
    records = [
        ("t:a", b'{"id": "a", "tier": "lead"}'),
        ("t:b", b'{"id": "other", "tier": "gold"}'),
        ("t:c", b"{"),
        ("t:d", b'{"id": "d", "tier": "gold", "contrat": {}}'),
        ("t:e", None),
        ("k:" + "0" * 64, None),
        ("k:xyz", b"{}"),
        ("z:later", b"{}"),
    ]
    found = read_records(records, ["gold"])
    assert found.tenants == dict.fromkeys("abcde")
    assert found.keys == {bytes(32): None}
    assert [name for name, _ in found.refused] == ["a", "b", "c", "d", "a key"]
