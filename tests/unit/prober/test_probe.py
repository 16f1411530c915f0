"""What is read of a probe's stream, and how it is judged."""

import json

import pytest

from service.prober.probe import _judge, _Reading


def read(*events, target_s=None):
    reading = _Reading()
    for number, event in enumerate(events):
        reading.take(event if isinstance(event, str) else f"data: {json.dumps(event)}", float(number))
    return _judge(reading, target_s), reading.ttft_s


def delta(**fields):
    return {"choices": [{"delta": fields}]}


ROLE, TOKEN, DONE = delta(role="assistant", content=""), delta(content="yes"), "data: [DONE]"


@pytest.mark.parametrize("token", [TOKEN, delta(reasoning_content="hm"), delta(reasoning="hm"), delta(tool_calls=[{}])])
def test_the_first_token_is_content_reasoning_or_a_call_not_the_role_or_a_comment(token):
    assert read(": heartbeat", ROLE, "", token, TOKEN, DONE) == ("", 3.0)


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ((ROLE, DONE), "no token"),
        ((ROLE, TOKEN), "the stream broke off"),
        ((TOKEN, {"error": {"message": "x"}}, DONE), "an error event"),
        ((TOKEN, "data: {", DONE), "an event that is not JSON"),
        ((TOKEN, "data: [1]", DONE), "an event that is no object"),
        (({"choices": None}, {"choices": [3]}, {"choices": [{"delta": None}]}, DONE), "no token"),
    ],
)
def test_what_makes_a_probe_bad(events, fault):
    assert read(*events)[0] == fault


def test_late_is_bad_and_in_time_is_good():
    assert read(ROLE, TOKEN, DONE, target_s=1.0)[0] == ""
    assert read(ROLE, ROLE, TOKEN, DONE, target_s=1.0)[0] == "first token after 2.00 s, promised within 1 s"
