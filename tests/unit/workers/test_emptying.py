"""A worker's preStop hook: how long it waits, and for what."""

import httpx
import pytest

from service.workers.emptying import EmptyingConfig, Ending, fetch_requests, wait_until_empty

PAGE = 'vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_waiting{engine="0"} 3.0\n'


class _Time:
    """Passes only where somebody pauses."""

    def __init__(self, script) -> None:
        self.moment = 0.0
        self._script = script

    def now(self) -> float:
        return self.moment

    def pause(self, length_s: float) -> None:
        assert length_s >= 0
        self.moment += max(length_s, 0.001)

    def look(self) -> int | None:
        found = self._script(self.moment)
        if isinstance(found, Exception):
            raise found
        return found


def wait(script, deadline_s: float = 60.0, delay_s: float = 5.0):
    time = _Time(script)
    return wait_until_empty(EmptyingConfig(deadline_s, delay_s), time.look, time.now, time.pause)


def test_an_idle_worker_is_kept_until_gateways_have_heard():
    emptied = wait(lambda at: 0)
    assert emptied.ending is Ending.EMPTY
    assert 5.0 <= emptied.took_s < 5.5


def test_it_waits_for_the_last_request_and_a_moment_more():
    emptied = wait(lambda at: 3 if at < 20.0 else 0)
    assert (emptied.ending, emptied.left) == (Ending.EMPTY, 0)
    assert 21.0 <= emptied.took_s < 21.5


def test_a_request_that_comes_late_is_waited_for():
    emptied = wait(lambda at: 1 if 4.5 < at < 8.0 else 0)
    assert 9.0 <= emptied.took_s < 9.5


def test_the_deadline_holds_and_tells_what_is_left():
    emptied = wait(lambda at: 7, deadline_s=30.0)
    assert (emptied.ending, emptied.left) == (Ending.DEADLINE, 7)
    assert 30.0 <= emptied.took_s < 30.5


def test_what_cannot_be_read_is_not_empty():
    emptied = wait(lambda at: None, deadline_s=10.0)
    assert (emptied.ending, emptied.left) == (Ending.DEADLINE, None)
    assert wait(lambda at: None if at < 8.0 else 0).took_s >= 9.0


def test_a_worker_that_is_gone_is_not_waited_for():
    emptied = wait(lambda at: 4 if at < 2.0 else httpx.ConnectError("refused"))
    assert emptied.ending is Ending.GONE
    assert 2.0 <= emptied.took_s < 2.5


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (httpx.Response(200, text=PAGE), 5),
        (httpx.Response(200, text='vllm:num_requests_running{engine="0"} 1.0\n'), 1),
        (httpx.Response(200, text="nothing of the kind\n"), None),
        (httpx.Response(500), None),
        (httpx.ReadTimeout("late"), None),
    ],
)
def test_what_is_inside_is_on_its_page(answer, found):
    def respond(request: httpx.Request) -> httpx.Response:
        assert request.url == "http://w:1/metrics"
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert fetch_requests(httpx.Client(transport=httpx.MockTransport(respond)), "http://w:1") == found


def test_nobody_there_is_told_apart():
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(httpx.ConnectError):
        fetch_requests(httpx.Client(transport=httpx.MockTransport(refuse)), "http://w:1")
