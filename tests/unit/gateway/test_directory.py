"""Keys and tenants of the file and of the store, side by side."""

from service.domain.tenant import Tenant
from service.domain.units import TenantId, TierName
from service.gateway.auth import hash_key
from service.gateway.directory import Directory

DEFAULT = TierName("default")
ACME, BETA = Tenant(TenantId("acme"), DEFAULT), Tenant(TenantId("beta"), DEFAULT)
A, B, C = (hash_key(name) for name in (b"a", b"b", b"c"))


class Wall:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def test_a_key_of_the_file_ends_when_it_says_so_and_connections_hear_of_it():
    wall = Wall()
    directory = Directory(wall, [(A, ACME, 1010.0), (B, ACME, None)])
    before = directory.generation
    directory.beat()
    assert (directory.find(b"a"), directory.generation) == (ACME, before)
    wall.now = 1010.0
    assert directory.find(b"a") is None
    assert directory.find(b"b") is ACME
    directory.beat()
    assert directory.generation == before + 1
    directory.replace([(A, ACME, None)])
    assert directory.find(b"a") is ACME
    assert directory.find(b"b") is None


def test_the_store_adds_changes_and_takes_away():
    directory = Directory(Wall(), [(A, ACME, None)])
    directory.follow(True, {B: (BETA.tenant_id, None), C: (ACME.tenant_id, 2000.0)}, {BETA.tenant_id: BETA})
    assert directory.find(b"b") is BETA
    assert directory.find(b"c") is ACME  # described by the file
    assert len(directory) == 2
    assert directory.stored_tenants() == [BETA]
    changed = Tenant(BETA.tenant_id, DEFAULT, suspended=True)
    directory.follow(False, {}, {BETA.tenant_id: changed})
    assert directory.find(b"b") is changed
    directory.follow(False, {C: None}, {TenantId("nobody"): None})
    assert directory.find(b"c") is None
    directory.follow(False, {}, {BETA.tenant_id: None})
    assert directory.find(b"b") is None
    directory.follow(True, {}, {})
    assert directory.find(b"a") is ACME


def test_a_tenant_of_the_file_is_described_by_the_file_alone():
    directory = Directory(Wall())
    other = Tenant(ACME.tenant_id, DEFAULT, suspended=True)
    directory.follow(True, {B: (ACME.tenant_id, None)}, {ACME.tenant_id: other})
    assert directory.find(b"b") is other
    directory.replace([], [ACME])
    assert directory.find(b"b") is ACME
