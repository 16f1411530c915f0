"""Connections are bounded before descriptors run out."""

import resource

import pytest

from service.runtime.descriptors import RESERVED, bound_connections, raise_descriptor_limit


@pytest.mark.parametrize(
    ("wanted", "descriptors", "allowed"), [(8192, 1 << 20, 8192), (8192, 1024, 416), (100, 1024, 100), (10, 50, 1)]
)
def test_each_connection_may_need_another_to_a_worker(wanted, descriptors, allowed):
    found = bound_connections(wanted, 64, descriptors)
    assert found == allowed
    assert found == 1 or 2 * found + 64 + RESERVED <= descriptors


def test_the_soft_limit_is_lifted_to_the_hard_one():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        assert raise_descriptor_limit() > 0
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_limit_is_taken_as_a_large_one(monkeypatch):
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    assert raise_descriptor_limit() == 1 << 20
