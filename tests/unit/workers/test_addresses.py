"""Addresses of workers: what is read from a URL, and what is said of a wrong one."""

import pytest

from service.workers.addresses import WorkerAddress, parse_address


def test_reads_host_and_port() -> None:
    assert parse_address("http://127.0.0.1:9001") == WorkerAddress("127.0.0.1:9001", "127.0.0.1", 9001)
    assert parse_address("http://worker-0.pool:8000/").authority == "worker-0.pool:8000"
    assert parse_address("https://w:8443").base_url == "https://w:8443"


def test_ipv6_is_bracketed() -> None:
    address = parse_address("http://[fd00::1]:8000")
    assert address.host == "fd00::1"
    assert address.base_url == "http://[fd00::1]:8000"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("127.0.0.1:9001", "must begin with http"),
        ("ftp://w:1", "must begin with http"),
        ("http://:9001", "host is missing"),
        ("http://w", "port is missing"),
        ("http://w:0", "port 0"),
        ("http://w:99999", "out of range"),
        ("http://w:abc", "could not be cast"),
        ("http://[fd00::1:9", "Invalid IPv6"),
        ("http://w:1/v1", "no path"),
        ("http://w:1?x=1", "no path or query"),
        ("http://u:p@w:1", "user or password"),
    ],
)
def test_says_what_is_wrong(url: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as caught:
        parse_address(url)
    assert repr(url) in str(caught.value)
