"""The load generator's requests, its counting of events and its command line."""

import json

import pytest

from loadtests.live.client import (
    STANDARD_LOADS,
    EventCounter,
    Load,
    RequestSource,
    Target,
    build_load,
    build_parser,
    build_request,
)

STREAM = b'data: {"a":1}\n\ndata: {"a":2}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize("size", range(1, len(STREAM) + 1))
def test_events_are_counted_however_the_stream_is_cut(size):
    counter = EventCounter()
    for start in range(0, len(STREAM), size):
        counter.feed(STREAM[start : start + size])
    assert counter.events == 3
    assert counter.is_done


def test_a_stream_without_its_end_is_not_done():
    counter = EventCounter()
    counter.feed(STREAM[:-9])
    assert not counter.is_done


def test_request_carries_the_knobs_and_its_own_length():
    load = Load(concurrency=1, requests=1, stream=True, tokens=7, pause_ms=3, padding_words=6)
    head, _, body = build_request(load, Target(port=1, key="k")).partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head
    assert b"authorization: Bearer k" in head
    request = json.loads(body)
    assert (request["max_tokens"], request["stream"], request["seed"]) == (7, True, 3)
    assert len(request["messages"][0]["content"].split()) == 6


def test_standard_loads_are_the_agreed_ones():
    assert STANDARD_LOADS["json"] == Load(16, 8000, False, 16, 0)
    assert STANDARD_LOADS["stream"] == Load(50, 300, True, 100, 5)


def test_command_line_changes_parts_of_a_standard_load():
    options = build_parser().parse_args(["--port", "1", "--load", "stream", "--requests", "9", "--pause-ms", "0"])
    assert build_load(options) == Load(50, 9, True, 100, 0)


def test_source_gives_exactly_as_many_requests_as_asked():
    source = RequestSource(2)
    assert [source.take() for _ in range(4)] == [True, True, False, False]
