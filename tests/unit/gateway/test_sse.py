"""However a stream is torn, the same comes out and the same is learned; only the bare usage event is taken out."""

import contextlib
import itertools
import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.gateway import sse
from service.gateway.responses import MESSAGES, OPENAI, RESPONSES
from service.gateway.sse import EventTap
from service.gateway.wire import read_openai_event

USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
}
PAYLOADS = [
    json.dumps({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
    json.dumps({"choices": [{"index": 0, "delta": {"content": 'say "usage" "error" [DONE] 😀'}}]}, ensure_ascii=False),
    json.dumps({"choices": [{"index": 1, "delta": {"reasoning": "hm"}}]}),
    json.dumps({"choices": [{"index": 0, "delta": {"content": "x"}}], "usage": USAGE["usage"]}),
    json.dumps(USAGE),
    json.dumps(USAGE, separators=(",", ":")),
    json.dumps({"choices": [], "usage": None}),
    json.dumps({"error": {"message": "x"}}),
    "[DONE]",
    "not json",
    '{"choices": [{"delta": {"content": NaN}}]}',
    "",
    "[1]",
    '{"choices":[{"delta":{"content":"\\ud83d"}}]}',
]
LINES = st.one_of(
    st.sampled_from(
        [": comment", ":", "id: 1", "retry: 5", "event: message", "data", "unknown: x", "data:", "\ufeffdata: x"]
    ),
)


@st.composite
def streams(draw):
    """(events as bytes, each with its end; whether each is a bare usage event)."""
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    events = []
    for payload in draw(st.lists(st.sampled_from(PAYLOADS), max_size=6)):
        parts = [payload]
        if draw(st.booleans()) and ", " in payload:
            at = payload.index(", ") + 1
            parts = [payload[:at], payload[at:]]
        before = draw(st.lists(LINES, max_size=2)) if draw(st.booleans()) else []
        if not events and before and before[0].startswith("\ufeff"):  # at the start of a stream it is a BOM
            before = []
        glue = draw(st.sampled_from(["data: ", "data:"]))
        lines = [*before, *(glue + part for part in parts)]
        decoded = None
        data = [line.partition(":")[2].removeprefix(" ") for line in lines if line.startswith("data:")]
        with contextlib.suppress(ValueError):
            decoded = json.loads("\n".join(data))
        bare = isinstance(decoded, dict) and decoded.get("choices") == [] and bool(decoded.get("usage"))
        events.append(((end.join(lines) + end + end).encode(), bare))
    if events and draw(st.booleans()):
        events[0] = (b"\xef\xbb\xbf" + events[0][0], events[0][1])
    if events and draw(st.booleans()):
        last = events[-1][0]
        events[-1] = (last[: -len(end) * draw(st.integers(1, 2))], events[-1][1])
    return events


def cut(data, places):
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def play(pieces, strip, reader=read_openai_event):
    tap = EventTap(reader, strip)
    out = b"".join([*map(tap.feed, pieces), tap.drain()])
    found = {
        name: getattr(tap, name)
        for name in (
            "first_token",
            "done",
            "failed",
            "aborted",
            "prompt_tokens",
            "cached_tokens",
            "output_tokens",
            "events",
        )
    }
    return out, found


@settings(max_examples=500, deadline=None)
@given(streams(), st.lists(st.integers(0, 3000), max_size=12), st.booleans())
@example(
    [(b'data: {"choices":[],"usage":{"prompt_tokens":1}}\r\n\r\n', True), (b"data: [DONE]\r\n\r\n", False)],
    [50, 51, 52, 53],
    True,
)
def test_any_split_gives_the_same(events, places, strip):
    data = b"".join(event for event, _ in events)
    whole = play([data], strip)
    assert play(cut(data, places), strip) == whole
    assert play([data[i : i + 1] for i in range(len(data))], strip) == whole
    assert play([data[i : i + 1] if i % 3 else data[i : i + 1] + b"" for i in range(len(data))] + [b""], strip) == whole
    expected = b"".join(event for event, bare in events if not (bare and strip))
    assert whole[0] == expected


def test_a_tap_that_splits_at_line_feeds_only_is_seen_to_fail(monkeypatch):
    monkeypatch.setattr(sse, "_BLANK", re.compile(rb"\n\n"))
    data = b'data: {"choices":[],"usage":{"prompt_tokens":1}}\r\n\r\ndata: [DONE]\r\n\r\n'
    assert play([data], True)[1]["prompt_tokens"] is None


def test_the_fast_way_reads_as_much_as_the_slow_one():
    token = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    usage = b"data: " + json.dumps(USAGE).encode() + b"\n\n"
    pieces = [token, token + token, token[:20], token[20:], token, usage, b"data: [DONE]\n\n"]
    out, found = play(pieces, True)
    assert out == token * 5 + b"data: [DONE]\n\n"
    assert (found["events"], found["output_tokens"], found["cached_tokens"], found["done"]) == (7, 3, 2, True)


TEXTS = [
    *("x", "", "usage", "error", "[DONE]", "_stop", "{", "}", ":", "é", "x\n\n"),
    *('say \\"usage\\"', 'x\\"', "a\\\\", "a\\", "\\n", '"', '"}}],"usage":{"completion_tokens":5},"x":[{"y":{"z":"'),
]
FRAMES = [
    'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}\n\n',
    'data: {"choices":[{"index":0,"delta":{"reasoning":"%s"}}]}\n\n',
    'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":"stop"}]}\n\n',
    'data: {"choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}],"usage":{"completion_tokens":3}}\n\n',
    'data: {"choices":[],"usage":{"completion_tokens":4},"text":"%s"}\n\n',
    'data: {"error":{"message":"%s"}}\n\n',
    'data: {"text":"%s"}\n\ndata: {"text":"%s"}\n\n',
    'data: {"text":"%s"}\n\ndata: [DONE]\n\n',
    'data: {"text": "%s"}\n\n',
    'data: {"text":"%s"}\r\n\r\n',
    'data: {"text":"%s"}\n',
    "data: [DONE]\n\n",
    '"}}\n\n',
]


def read_all(pieces, strip):
    tap = EventTap(read_openai_event, strip)
    out = [tap.feed(piece) for piece in pieces] + [tap.drain()]
    return out, tap.first_token, tap.done, tap.failed, tap.aborted, tap.output_tokens, tap.events, tap.torn


@settings(max_examples=400)
@given(st.lists(st.tuples(st.sampled_from(FRAMES), st.sampled_from(TEXTS)), max_size=12), st.booleans())
def test_an_event_known_by_what_stands_around_its_text_is_read_as_any_other(said, strip):
    plain = (FRAMES[0] % "x").encode()
    pieces = [plain, plain, *(frame.replace("%s", text).encode() for frame, text in said)]
    known = read_all(pieces, strip)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sse, "_FRAMES_MAX", 0)
        assert known == read_all(pieces, strip)


def test_what_stands_around_texts_is_looked_for_a_few_times_only():
    tap = EventTap(read_openai_event, False)
    for number in range(50):
        tap.feed(b'data: {"choices":[{"text":"a"}],"n":%d}\n\n' % number)
    assert tap._frames == 8
    assert tap.events == 50


@pytest.mark.parametrize("strip", [True, False])
@pytest.mark.parametrize("size", [1, 7, 100, 5000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_huge_event_passes_and_its_name_counts(monkeypatch, strip, size, end):
    monkeypatch.setattr(sse, "_PARTIAL_MAX", 1000)
    huge = b"event: response.completed" + end + b'data: {"x":"' + b"y" * 3000 + b'"}' + end + end
    after = b'data: {"type":"response.output_text.delta","delta":"z"}' + end + end
    data = huge + after + huge
    out, found = play([data[i : i + size] for i in range(0, len(data), size)], strip, RESPONSES._reader)
    assert out == data
    assert found["done"]
    assert found["first_token"]
    assert found["events"] == 3


def test_an_event_nested_too_deeply_is_passed_unread():
    data = b'data: {"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n"
    assert play([data], True)[0] == data


@pytest.mark.parametrize(
    ("dialect", "events", "expected"),
    [
        (OPENAI, ['{"choices":[{"text":"x"}]}'], {"first_token"}),
        (OPENAI, ['{"choices":[{"delta":{"tool_calls":[{}]}}]}'], {"first_token"}),
        (OPENAI, ['{"choices":[{"delta":{},"finish_reason":"abort"}]}', "[DONE]"], {"aborted", "done"}),
        (
            OPENAI,
            ['{"choices":[{"delta":{"content":"x"}}]}', '{"choices":[{"delta":{},"finish_reason":"abort"}]}'],
            {"first_token"},
        ),
        (OPENAI, ['{"choices":[5,null,{"delta":7}],"usage":5}', "5", '{"choices":{}}'], set()),
        (OPENAI, ['{"choices":[],"usage":{"prompt_tokens":true}}'], set()),
        (RESPONSES, ['{"type":"response.output_text.delta","delta":"x"}'], {"first_token"}),
        (RESPONSES, ['{"type":"response.output_text.delta","delta":""}', "5", '{"type":5}'], set()),
        (RESPONSES, ['{"type":"response.completed","response":{"usage":{"input_tokens":1}}}'], {"done"}),
        (RESPONSES, ['{"type":"response.failed","response":{"usage":null}}'], {"done", "failed"}),
        (RESPONSES, ['{"error":{"message":"x"}}'], {"failed"}),
        (MESSAGES, ['{"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}'], {"first_token"}),
        (MESSAGES, ['{"type":"content_block_delta","delta":{"thinking":"x"}}'], {"first_token"}),
        (MESSAGES, ['{"type":"content_block_delta","delta":5}', "[]"], set()),
        (MESSAGES, ['{"type":"content_block_start","content_block":{"type":"tool_use"}}'], {"first_token"}),
        (MESSAGES, ['{"type":"content_block_start","content_block":{"type":"text"}}', '{"type":"ping"}'], set()),
        (MESSAGES, ['{"type":"message_delta","usage":{"output_tokens":4}}', '{"type":"message_stop"}'], {"done"}),
        (MESSAGES, ['{"type":"error","error":{}}'], {"failed"}),
        (MESSAGES, ['{"error":{"message":"x"}}'], {"failed"}),
    ],
)
def test_each_api_is_understood(dialect, events, expected):
    tap = dialect.open_tap(strip_usage=False)
    for one in events:
        tap.feed(f"data: {one}\n\n".encode())
    assert {name for name in ("first_token", "done", "failed", "aborted") if getattr(tap, name)} == expected


def test_usage_in_each_apis_words():
    for dialect, event, usage in (
        (OPENAI, '{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}', (5, None, 2)),
        (
            RESPONSES,
            '{"type":"response.completed","response":{"usage":{"input_tokens":5,"output_tokens":2,'
            '"input_tokens_details":{"cached_tokens":1}}}}',
            (5, 1, 2),
        ),
        (
            MESSAGES,
            '{"type":"message_delta","usage":{"input_tokens":5,"output_tokens":2,"cache_read_input_tokens":3}}',
            (5, 3, 2),
        ),
    ):
        tap = dialect.open_tap(strip_usage=False)
        tap.feed(f"data: {event}\n\n".encode())
        assert (tap.prompt_tokens, tap.cached_tokens, tap.output_tokens) == usage
