"""What the bench's worker reads from requests."""

import pytest

from loadtests.live.backend import Knobs, frame_chunk, read_knobs, split_request

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


def test_knobs_have_defaults():
    assert read_knobs(b"{}") == Knobs(tokens=16, pause_s=0.0, stream=False, flood=False, include_usage=False)


@pytest.mark.parametrize("name", [b"max_tokens", b"max_completion_tokens"])
def test_knobs_of_a_paced_stream(name):
    body = b'{"%s": 100,"stream":true, "seed":5,"stream_options":{"include_usage":true}}' % name
    assert read_knobs(body) == Knobs(tokens=100, pause_s=0.005, stream=True, flood=False, include_usage=True)


def test_a_negative_seed_floods():
    knobs = read_knobs(b'{"seed": -1, "stream": true}')
    assert knobs.flood
    assert knobs.pause_s == 0.0


def test_request_with_a_length_and_what_follows_it():
    head, body, rest = split_request(POST + b"Content-Length: 3\r\n\r\nabcGET") or pytest.fail("incomplete")
    assert head.startswith(b"POST /v1/chat/completions")
    assert (body, rest) == (b"abc", b"GET")


def test_request_without_a_body():
    assert split_request(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n") == (
        b"GET /health HTTP/1.1\r\nhost: x",
        b"",
        b"",
    )


def test_chunked_request_is_joined():
    whole = (
        POST + b"transfer-encoding: chunked\r\n\r\n" + frame_chunk(b"ab0\r\n\r\n") + frame_chunk(b"c") + b"0\r\n\r\n"
    )
    split = split_request(whole + b"rest")
    assert split is not None
    assert split[1:] == (b"ab0\r\n\r\nc", b"rest")


@pytest.mark.parametrize(
    "whole",
    [POST + b"content-length: 3\r\n\r\nabc", POST + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"],
)
def test_a_request_cut_anywhere_is_incomplete_until_its_last_byte(whole):
    assert [split_request(whole[:cut]) for cut in range(len(whole))] == [None] * len(whole)
    assert split_request(whole) is not None
