"""One attempt's answer: what is held back, what is told to whom, what a fault becomes."""

import logging

import pytest

from service.domain.event import FailureCause
from service.domain.outcome import Outcome
from service.gateway.responses import OPENAI
from service.runtime.relay import Relay
from tests.support.scripted_worker import ABORT, ROLE, STOP, USAGE, event, token

SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON = [(b"content-type", b"application/json")]


class Traveller:
    """Writes down what it is told."""

    def __init__(self, stream=True):
        self.stream = stream
        self.tap = OPENAI.open_tap(False) if stream else None
        self.log = []
        self.sent = b""
        self.relay = Relay(self, self.write, lambda: 5.0, 300)

    def write(self, data):
        self.sent += data

    def on_answer(self, headers, length, data):
        self.log.append(("answer", headers, length))
        self.sent += data

    def on_first_token(self):
        self.log.append("first token")

    def on_complete(self, outcome, whole):
        self.log.append((outcome, whole))

    def on_broken(self, outcome):
        self.log.append(("broken", outcome))

    def on_worker_refusal(self, status, content_type, body):
        self.log.append(("refusal", status, content_type, body))

    def on_attempt_failed(self, cause, status, retry_after_s):
        self.log.append((cause, status, retry_after_s))

    def on_hold(self):
        self.log.append("hold")

    def on_fault(self):
        self.log.append("fault")


@pytest.fixture
def stream():
    traveller = Traveller()
    traveller.relay.on_head(200, SSE)
    return traveller


def test_a_stream_is_held_until_its_first_token(stream):
    relay = stream.relay
    relay.on_body(event(ROLE))
    assert (stream.log, stream.sent, relay.started) == (["hold"], b"", False)
    relay.on_body(event(token("a")))
    relay.on_body(event(token("b")) + event(STOP))
    relay.on_body(event(USAGE))
    relay.on_body(event("[DONE]"))
    relay.on_end()
    assert stream.log[1:] == [("answer", b"content-type: text/event-stream; charset=utf-8\r\n", None), "first token",
                              (Outcome.COMPLETED, None)]  # fmt: skip
    assert stream.sent == b"".join(map(event, (ROLE, token("a"), token("b"), STOP, USAGE, "[DONE]")))
    assert relay.last_byte_at == 5.0


def test_what_is_held_is_released_by_time_and_by_size(stream):
    relay = stream.relay
    relay.release()
    assert stream.log == []
    relay.on_body(event(ROLE))
    relay.release()
    assert stream.sent == event(ROLE)
    relay.release()
    relay.on_body(b": comment\n\n")
    relay.on_body(b"data: ")  # torn: waits for its rest
    assert stream.sent == event(ROLE) + b": comment\n\n"
    other = Traveller()
    other.relay.on_head(200, SSE)
    other.relay.on_body(event(ROLE) + b": " + b"x" * 300 + b"\n\n")
    assert other.relay.started


def test_an_attempt_that_was_replaced_releases_nothing(stream):
    relay = stream.relay
    relay.on_body(event(ROLE))
    stream.relay = None
    relay.release()
    assert stream.sent == b""


@pytest.mark.parametrize(
    ("pieces", "clean", "last"),
    [
        ([event(ROLE)], True, (FailureCause.BROKEN, None, None)),
        ([event(ROLE)], False, (FailureCause.UNREACHABLE, None, None)),
        ([event(token())], True, ("broken", Outcome.STREAM_BROKEN)),
        ([event(token())], False, ("broken", Outcome.STREAM_BROKEN)),
        ([event(token()), event("[DONE]")], False, (Outcome.COMPLETED, None)),
        ([event(token()), event({"error": {}})], False, (Outcome.STREAM_BROKEN, None)),
        ([event(ROLE), event(ABORT), event("[DONE]")], True, (FailureCause.BROKEN, None, None)),
        ([event(ROLE), event("[DONE]")[:-2]], True, (Outcome.COMPLETED, None)),
    ],
)
def test_how_a_stream_ends(stream, pieces, clean, last):
    for piece in pieces:
        stream.relay.on_body(piece)
    if clean:
        stream.relay.on_end()
    else:
        stream.relay.on_failure(FailureCause.UNREACHABLE)
    assert stream.log[-1] == last


def test_a_stream_that_was_only_released_and_then_aborted_is_broken(stream):
    stream.relay.on_body(event(ROLE))
    stream.relay.release()
    stream.relay.on_body(event(ABORT) + event("[DONE]"))
    stream.relay.on_end()
    assert stream.log[-1] == (Outcome.STREAM_BROKEN, None)


def test_a_first_token_in_the_last_piece_without_a_blank_line(stream):
    stream.relay.on_body(event(token()) + b"data: [DONE]")
    stream.relay.on_end()
    assert stream.log[-2:] == ["first token", (Outcome.COMPLETED, None)]
    other = Traveller()
    other.relay.on_head(200, SSE)
    other.relay.on_body(b"data: [DONE]\n\n" + event(token())[:-2])
    other.relay.on_end()
    assert other.log[-2:] == ["first token", (Outcome.COMPLETED, None)]


@pytest.mark.parametrize("cut", [1, 2])
def test_our_mark_stands_behind_a_blank_line(stream, cut):
    stream.relay.on_body(event(token()))
    stream.relay.on_body(event({"error": {}})[:-cut])
    stream.relay.on_end()
    assert stream.sent.endswith(b"}\n\n")


def test_a_short_answer_is_handed_over_whole():
    one = Traveller(stream=False)
    one.relay.on_head(200, JSON)
    one.relay.on_body(b'{"a":')
    one.relay.on_body(b"1}")
    one.relay.on_end()
    assert one.log == [("answer", b"content-type: application/json\r\n", 7), (Outcome.COMPLETED, b'{"a":1}')]


def test_a_long_answer_passes_and_its_end_is_kept():
    one = Traveller(stream=False)
    one.relay.on_head(200, [*JSON, (b"content-length", b"9000")])
    for number in range(90):
        one.relay.on_body(b"%02d" % number * 50)
    one.relay.on_end()
    assert one.log[0] == ("answer", b"content-type: application/json\r\n", 9000)
    outcome, tail = one.log[1]
    assert outcome is Outcome.COMPLETED
    assert tail == one.sent[-4096:]
    assert len(one.sent) == 9000


def test_a_long_answer_that_is_cut_is_broken():
    one = Traveller(stream=False)
    one.relay.on_head(200, JSON)
    one.relay.on_body(b"x" * 400)
    one.relay.on_failure(FailureCause.BROKEN)
    assert one.log[-1] == ("broken", Outcome.STREAM_BROKEN)


@pytest.mark.parametrize("space", [b"", b" "])
def test_an_empty_answer_of_a_worker_that_shuts_down_is_none(space):
    one = Traveller(stream=False)
    one.relay.on_head(200, JSON)
    one.relay.on_body(b'{"choices":[{"finish_reason":' + space + b'"abort"}]}')
    one.relay.on_end()
    assert one.log == [(FailureCause.BROKEN, None, None)]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (503, b"busy", (FailureCause.BUSY, 503, 7.0)),
        (429, b"busy", (FailureCause.BUSY, 429, 7.0)),
        (400, b"no", ("refusal", 400, b"text/plain", b"no")),
        (401, b"no", (FailureCause.FAULTY, 401, None)),
        (500, b"cannot schedule new futures after shutdown", (FailureCause.BROKEN, 500, None)),
        (500, b"dead", (FailureCause.FAULTY, 500, None)),
        (204, b"", (FailureCause.FAULTY, 204, None)),
    ],
)
def test_the_status_is_the_answer_whether_or_not_its_words_all_come(status, body, told, clean):
    one = Traveller()
    one.relay.on_head(status, [(b"content-type", b"text/plain"), (b"retry-after", b"7")])
    one.relay.on_body(body)
    if clean:
        one.relay.on_end()
    else:
        one.relay.on_failure(FailureCause.BROKEN)
    assert one.log == [told]


def test_the_words_of_an_error_are_bounded():
    one = Traveller()
    one.relay.on_head(400, [])
    for _ in range(40):
        one.relay.on_body(b"x" * 65536)
    one.relay.on_end()
    assert len(one.log[0][3]) <= 320 * 1024


def test_hop_by_hop_headers_stay_here():
    one = Traveller(stream=False)
    headers = [
        (b"connection", b"close, X-Hop"), (b"x-hop", b"1"), (b"transfer-encoding", b"chunked"), (b"x-kept", b"2"),
        (b"content-length", b"nonsense"), (b"retry-after", b"Mon, 1 Jan"), (b"set-cookie", b"a=b"),
        (b"connection", b"keep-alive"),
    ]  # fmt: skip
    one.relay.on_head(200, headers)
    one.relay.on_body(b"y" * 400)
    assert one.log == [("answer", b"x-kept: 2\r\n", None)]


@pytest.mark.parametrize("call", ["on_end", "on_failure", "release", "on_fault"])
def test_a_fault_of_our_own_ends_its_request_with_one_line(call, stream, monkeypatch, caplog):
    stream.relay.on_body(event(ROLE))

    def explode(*_):
        raise RuntimeError("injected")

    stream.on_answer = stream.on_complete = stream.on_attempt_failed = explode
    with caplog.at_level(logging.ERROR):
        if call == "on_failure":
            stream.relay.on_failure(FailureCause.BROKEN)
        elif call == "on_fault":
            stream.relay.on_fault(RuntimeError("injected"))
        else:
            getattr(stream.relay, call)()
    assert stream.log[-1] == "fault"
    (record,) = caplog.records
    assert "injected" in str(record.exc_info[1])
