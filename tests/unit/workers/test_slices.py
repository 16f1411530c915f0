"""EndpointSlices as a cluster writes them, and as nobody should."""

from typing import Any

import pytest

from service.workers.slices import Picture, PortChoice, read_workers

HTTP = PortChoice("http")


def endpoint(uid: str = "u-0", *hosts: str, pod: str = "w-0", **conditions: bool) -> dict[str, Any]:
    return {
        "addresses": list(hosts) or ["10.0.0.1"],
        "conditions": conditions,
        "targetRef": {"kind": "Pod", "name": pod, "uid": uid, "namespace": "n"},
    }


def slice_of(*endpoints: object, name: str = "s-1", family: str = "IPv4", ports: Any = None) -> dict[str, Any]:
    ports = [{"name": "http", "port": 8000, "protocol": "TCP"}] if ports is None else ports
    return {"metadata": {"name": name}, "addressType": family, "endpoints": list(endpoints), "ports": ports}


def test_a_pod_is_known_by_its_uid_and_called_by_its_name():
    (worker,) = read_workers([slice_of(endpoint("u-0", "10.0.0.1"))], HTTP).workers
    assert (worker.worker_id, worker.pod, worker.base_url) == ("u-0", "w-0", "http://10.0.0.1:8000")
    assert not worker.leaving


@pytest.mark.parametrize("conditions", [{}, {"ready": True}, {"ready": False, "serving": False}])
def test_readiness_decides_nothing(conditions):
    (worker,) = read_workers([slice_of(endpoint(**conditions))], HTTP).workers
    assert not worker.leaving


@pytest.mark.parametrize("serving", [False, True])
def test_a_terminating_pod_is_leaving(serving):
    (worker,) = read_workers([slice_of(endpoint(ready=False, serving=serving, terminating=True))], HTTP).workers
    assert worker.leaving


def test_only_the_first_address_of_an_endpoint_counts():
    (worker,) = read_workers([slice_of(endpoint("u", "10.0.0.1", "10.0.0.9"))], HTTP).workers
    assert worker.host == "10.0.0.1"


@pytest.mark.parametrize("turned", [False, True])
def test_a_pod_that_stands_in_two_slices_is_one_worker(turned):
    four = slice_of(endpoint("u", "10.0.0.1"), name="a")
    six = slice_of(endpoint("u", "fd00::1", terminating=True), name="b", family="IPv6")
    pair = [six, four] if turned else [four, six]
    (worker,) = read_workers(pair, HTTP).workers
    assert worker.authority == "10.0.0.1:8000"
    assert worker.leaving  # whoever says so
    (alone,) = read_workers([six], HTTP).workers
    assert alone.base_url == "http://[fd00::1]:8000"


def test_ids_are_in_a_fixed_order():
    one, two = endpoint("b"), endpoint("a", "10.0.0.2")
    assert [w.worker_id for w in read_workers([slice_of(one, two)], HTTP).workers] == ["a", "b"]


def test_an_endpoint_that_is_no_pod_is_known_by_its_address():
    bare = {"addresses": ["10.9.9.9"]}
    node = {"addresses": ["10.9.9.8"], "targetRef": {"kind": "Node", "uid": "x"}}
    assert [w.worker_id for w in read_workers([slice_of(bare, node)], HTTP).workers] == [
        "10.9.9.8:8000",
        "10.9.9.9:8000",
    ]
    assert all(w.pod is None for w in read_workers([slice_of(bare)], HTTP).workers)


def test_a_certificate_is_for_the_name_of_the_service():
    (worker,) = read_workers([slice_of(endpoint())], PortChoice("http", server_name="w.n.svc")).workers
    assert (worker.base_url, worker.server_name) == ("https://10.0.0.1:8000", "w.n.svc")


TWO = [{"name": "http", "port": 8000}, {"name": "metrics", "port": 9000, "protocol": "TCP"}]
NAMELESS = [{"port": 8000}]


@pytest.mark.parametrize(
    ("choice", "ports", "port"),
    [
        (PortChoice(), NAMELESS, 8000),
        (PortChoice("metrics"), TWO, 9000),
        (PortChoice(number=7), TWO, 7),
        (PortChoice(number=7), [], 7),
        (PortChoice(), [*NAMELESS, {"name": "quic", "port": 1, "protocol": "UDP"}], 8000),
    ],
)
def test_the_port(choice, ports, port):
    (worker,) = read_workers([slice_of(endpoint(), ports=ports)], choice).workers
    assert worker.port == port


@pytest.mark.parametrize(
    ("choice", "ports", "words"),
    [
        (PortChoice(), TWO, "pool.port_name is needed: slice s-1 has the ports 'http', 'metrics'"),
        (PortChoice("web"), TWO, "pool.port_name: slice s-1 has no port 'web', only 'http', 'metrics'"),
        (PortChoice("web"), [], "only none"),
        (PortChoice("http"), [{"name": "http", "port": 0}], "has no port 'http'"),
        (PortChoice("http"), "nonsense", "only none"),
    ],
)
def test_a_port_that_is_not_there_is_told_by_the_setting_that_mends_it(choice, ports, words):
    reading = read_workers([slice_of(endpoint(), ports=ports)], choice)
    assert reading.workers == ()
    assert words in (reading.complaint or "")


@pytest.mark.parametrize(
    "item",
    [
        {},
        slice_of(endpoint(), family="Carrier pigeon"),
        slice_of(),
        {**slice_of(), "endpoints": None},
        slice_of("nonsense", {"addresses": []}, {"addresses": [7]}, {"addresses": "10.0.0.1"}),
    ],
)
def test_what_cannot_be_read_is_nobody(item):
    assert read_workers([item], HTTP).workers == ()


def test_odd_parts_of_an_endpoint_do_no_harm():
    item = slice_of({"addresses": ["10.0.0.1"], "conditions": "odd", "targetRef": 3})
    (worker,) = read_workers([item], HTTP).workers
    assert worker.worker_id == "10.0.0.1:8000"


def test_a_picture_keeps_the_last_word_on_each_slice():
    picture = Picture()
    picture.put(slice_of(endpoint("a"), name="one"))
    picture.put(slice_of(endpoint("b"), name="two"))
    picture.put(slice_of(endpoint("c"), name="one"))
    picture.drop(slice_of(name="two"))
    picture.drop({"metadata": 3})  # nobody
    assert [w.worker_id for w in read_workers(picture.slices.values(), HTTP).workers] == ["c"]
