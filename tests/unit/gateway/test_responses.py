"""Every outcome has its words, its retry advice and its place in the documentation."""

import json

import pytest

from service.domain.outcome import Fault, Outcome
from service.gateway.edge import HEAD_TOO_LARGE, NOT_HTTP, TOO_MANY
from service.gateway.responses import MESSAGES, OPENAI, RESPONSES, TELLINGS, render_retry, telling_of
from tests.support.errors_page import PAGE, SILENT, render_page

HEARD = [outcome for outcome in Outcome if TELLINGS[outcome] is not None]


def test_every_outcome_is_told_or_has_a_reason_not_to_be():
    assert set(TELLINGS) == set(Outcome)
    assert {outcome for outcome in Outcome if TELLINGS[outcome] is None} == set(SILENT)


def test_the_documentation_is_current():
    assert PAGE.read_text() == render_page(), "run: python -m tests.support.errors_page"


@pytest.mark.parametrize("outcome", HEARD, ids=lambda one: one.label)
def test_status_agrees_with_fault_and_retry(outcome):
    telling = TELLINGS[outcome]
    if outcome is not Outcome.CLIENT_DEADLINE:  # nobody's fault but the client's wish, and no client expects a 4xx
        beyond_contract = outcome in (Outcome.SHED, Outcome.REVOKED)  # the client's excess, and the service is busy
        assert (400 <= telling.status < 500) is (outcome.fault is Fault.CLIENT and not beyond_contract)
    assert telling.kind == "server_error" or telling.status < 500
    if outcome.retryable:
        assert telling.status in (408, 429, 500, 502, 503, 504)
    else:
        assert telling.status in (400, 401, 403, 404, 413, 422)
    assert telling.message.endswith(".")


@pytest.mark.parametrize("dialect", [OPENAI, RESPONSES, MESSAGES])
@pytest.mark.parametrize("outcome", Outcome, ids=lambda one: one.label)
def test_a_refusal_has_the_shape_of_its_api(dialect, outcome):
    status, headers, body = dialect.build_refusal(outcome, 1.25, "words", "field")
    said = json.loads(body)
    assert status == telling_of(outcome).status
    assert b"retry-after: 2\r\nretry-after-ms: 1250\r\n" in headers
    assert headers.startswith(b"content-type: application/json\r\n")
    assert (b"www-authenticate" in headers) is (status == 401)
    assert said["error"]["message"] == "words"
    if dialect is MESSAGES:
        assert said["type"] == "error"
        assert set(said["error"]) == {"type", "message"}
    else:
        assert said["error"]["param"] == "field"


@pytest.mark.parametrize("dialect", [OPENAI, RESPONSES, MESSAGES])
@pytest.mark.parametrize("outcome", HEARD, ids=lambda one: one.label)
def test_an_error_event_is_understood_by_the_tap_of_its_api(dialect, outcome):
    tap = dialect.open_tap(strip_usage=False)
    events = dialect.build_error_events(outcome)
    assert tap.feed(dialect.build_heartbeat() + events).endswith(events)
    assert tap.failed
    assert b"finish_reason" not in events
    assert events.endswith(b"data: [DONE]\n\n") is (dialect is not MESSAGES)


def test_canned_answers_have_a_true_length_and_our_shape():
    for answer in (TOO_MANY, NOT_HTTP, HEAD_TOO_LARGE):
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"content-length: %d" % len(body) in head
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def test_retry_after_is_rounded_up_in_seconds():
    assert render_retry(None) == b""
    assert render_retry(0.2) == b"retry-after: 1\r\nretry-after-ms: 200\r\n"
    assert render_retry(3.0) == b"retry-after: 3\r\nretry-after-ms: 3000\r\n"


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (b'{"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":3}}}', (5, 3, 2)),
        (b'{"usage":{"prompt_tokens":5,"completion_tokens":2}}', (5, None, 2)),
        (b'{"usage":{"input_tokens":5,"output_tokens":2,"input_tokens_details":{"cached_tokens":3}}}', (5, 3, 2)),
        (b'{"usage":{"input_tokens":5,"output_tokens":2,"cache_read_input_tokens":4}}', (5, 4, 2)),
        (b'{"usage":null}', (None, None, None)),
        (b'{"data":[]}', (None, None, None)),
        (b'{"usage":{"prompt_tokens":"x"}}', (None, None, None)),
        (b"[", (None, None, None)),
        (b"\xff", (None, None, None)),
    ],
)
def test_usage_of_a_whole_answer(body, usage):
    assert OPENAI.read_usage(body) == usage


def test_an_error_of_a_worker_is_kept_or_put_into_our_shape():
    own = b'{"error":{"message":"x"}}'
    assert OPENAI.adopt_error(400, b"", own) == (b"content-type: application/json\r\n", own)
    for body, words in ((b'{"detail":"d"}', "d"), (b'{"detail":[1]}', None), (b"<html>", None), (b"[" * 9999, None)):
        said = json.loads(OPENAI.adopt_error(404, b"text/html", body)[1])
        assert said["error"]["message"] == (words or TELLINGS[Outcome.WORKER_REFUSED].message)
