"""Reading answers cut anywhere."""

import pytest

from loadtests.live.stream_reader import StreamReader

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":" a"}}]}\n\n'
FINISH = b'data: {"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = ROLE + TOKEN + TOKEN + FINISH + USAGE + DONE


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, len(STREAM)])
def test_first_and_last_token_are_seen_when_their_event_is_whole(size):
    reader = StreamReader()
    for start in range(0, len(STREAM), size):
        end = min(start + size, len(STREAM))
        reader.feed(STREAM[start:end], float(end))
    first, last = len(ROLE + TOKEN), len(ROLE + TOKEN + TOKEN)
    assert first <= reader.first_s < first + size
    assert last <= reader.last_s < last + size
    assert (reader.is_done, reader.has_error, reader.read_tokens()) == (True, False, 2)


@pytest.mark.parametrize(
    "delta",
    [b'"content": "x"', b'"reasoning":"x"', b'"reasoning_content":"x"', b'"tool_calls":[{"index":0}]'],
)
def test_content_reasoning_and_tool_calls_are_tokens(delta):
    reader = StreamReader()
    reader.feed(b'data: {"choices":[{"delta":{' + delta + b"}}]}\n\n", 1.0)
    assert reader.first_s == 1.0


def test_role_finish_and_empty_lists_are_none():
    reader = StreamReader()
    reader.feed(ROLE + FINISH + b'data: {"choices":[{"delta":{"tool_calls":[],"content":null}}]}\n\n: beat\n\n', 1.0)
    assert reader.first_s is None


def test_an_error_event_is_seen():
    reader = StreamReader()
    reader.feed(TOKEN + b'data: {"error":{"message":"gone"}}\n\n' + DONE, 1.0)
    assert (reader.has_error, reader.is_done) == (True, True)


@pytest.mark.parametrize("usage", [b"", b'data: {"usage":{"completion_tokens":"x"}}\n\n', b'data: {"usage":{}}\n\n'])
def test_tokens_are_unknown_without_a_proper_usage(usage):
    reader = StreamReader()
    reader.feed(TOKEN + usage, 1.0)
    assert reader.read_tokens() is None


def test_the_last_usage_counts():
    reader = StreamReader()
    reader.feed(USAGE.replace(b":2}", b":1}") + USAGE, 1.0)
    assert reader.read_tokens() == 2
