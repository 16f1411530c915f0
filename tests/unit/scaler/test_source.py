"""What Prometheus answers, and what it should not."""

import httpx
import pytest

from service.scaler.source import Prometheus, SourceError


def build(answer: httpx.Response | Exception) -> Prometheus:
    def respond(request: httpx.Request) -> httpx.Response:
        assert request.url.path == "/api/v1/query_range"
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Prometheus("http://p:9090/", httpx.AsyncClient(transport=httpx.MockTransport(respond)))


async def test_values_are_put_on_the_grid_and_what_is_no_number_is_left_out() -> None:
    values = [[1000, "1"], [1030.0, "NaN"], [1060, "+Inf"], [1090, "4.5"]]
    body = {"status": "success", "data": {"result": [{"metric": {"b": "2", "a": "1"}, "values": values}]}}
    series = await build(httpx.Response(200, json=body)).fetch("up", 1000.0, 1090.0, 30.0)
    assert series == {(("a", "1"), ("b", "2")): {0: 1.0, 3: 4.5}}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (httpx.ConnectError("refused"), "refused"),
        (httpx.ReadTimeout(""), "ReadTimeout"),
        (httpx.Response(200, text="<html>"), "query_range"),
        (httpx.Response(422, json={"status": "error", "error": "too many points"}), "too many points"),
        (httpx.Response(200, json=[1]), "nothing that is understood"),
        (httpx.Response(200, json={"status": "success", "data": {}}), "not understood"),
        (httpx.Response(200, json={"status": "success", "data": {"result": [{"metric": []}]}}), "not understood"),
        (
            httpx.Response(200, json={"status": "success", "data": {"result": [{"metric": {}, "values": [[1, "x"]]}]}}),
            "not understood",
        ),
    ],
)
async def test_what_is_no_answer_is_one_error(answer: httpx.Response | Exception, told: str) -> None:
    with pytest.raises(SourceError, match=told):
        await build(answer).fetch("up", 0.0, 30.0, 30.0)
