"""What the gateway relies on in a worker, asked of a real vLLM: metric families, streams, errors, identities.

The same facts are asked of the emulated worker through ``tests/conformance/worker_contract.py``; here are those that
need the real one, or that show the emulator's model of it is right.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from service.launch.command import HISTOGRAM_BUCKETS
from service.launch.cpu_engine import CpuEngine
from service.launch.fallback import find_fallbacks, parse_engine_report
from service.launch.profiles import build_cpu_small_profile
from tests.support.engine_process import EngineProcess
from tests.support.forced_output import forced_tool_call

ENGINE = {"engine", "model_name"}

# Family (as prometheus_client names it, without _total), type, labels.
FAMILIES = {
    "vllm:num_requests_running": ("gauge", ENGINE),
    "vllm:num_requests_waiting": ("gauge", ENGINE),
    "vllm:num_requests_waiting_by_reason": ("gauge", ENGINE | {"reason"}),
    "vllm:kv_cache_usage_perc": ("gauge", ENGINE),
    "vllm:engine_sleep_state": ("gauge", ENGINE | {"sleep_state"}),
    "vllm:num_preemptions": ("counter", ENGINE),
    "vllm:prompt_tokens": ("counter", ENGINE),
    "vllm:prompt_tokens_cached": ("counter", ENGINE),
    "vllm:generation_tokens": ("counter", ENGINE),
    "vllm:request_success": ("counter", ENGINE | {"finished_reason"}),
    "vllm:admission_rejections": ("counter", {"model_name", "reason"}),
    "vllm:prefix_cache_queries": ("counter", ENGINE),
    "vllm:prefix_cache_hits": ("counter", ENGINE),
    "vllm:time_to_first_token_seconds": ("histogram", ENGINE),
    "vllm:request_time_per_output_token_seconds": ("histogram", ENGINE),
    "vllm:inter_token_latency_seconds": ("histogram", ENGINE),
    "vllm:e2e_request_latency_seconds": ("histogram", ENGINE),
    "vllm:request_queue_time_seconds": ("histogram", ENGINE),
    "vllm:request_prefill_time_seconds": ("histogram", ENGINE),
    "vllm:request_decode_time_seconds": ("histogram", ENGINE),
    "vllm:request_inference_time_seconds": ("histogram", ENGINE),
    "vllm:iteration_tokens_total": ("histogram", ENGINE),
}
# Names that older peers still read; they would silently read nothing.
GONE = ("vllm:time_per_output_token_seconds", "vllm:gpu_cache_usage_perc")
FIGURES_WITHIN_S = 20.0


@pytest.fixture(scope="module")
def client(cpu_worker: EngineProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cpu_worker.url, timeout=30) as opened:
        yield opened


def chat(model_name: str, **fields: object) -> dict[str, object]:
    return {
        "model": model_name,
        "messages": [{"role": "user", "content": "Say something."}],
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
        **fields,
    }


def read_metrics(client: httpx.Client) -> dict[str, Metric]:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def read_value(client: httpx.Client, family: str, **labels: str) -> float:
    values = [
        sample.value
        for sample in read_metrics(client)[family].samples
        if not sample.name.endswith("_created") and labels.items() <= sample.labels.items()
    ]
    assert len(values) == 1
    return values[0]


def wait_for_value(client: httpx.Client, family: str, expected: float) -> None:
    """The worker publishes its figures after each step of its engine, so they lag behind what a client has seen."""
    give_up_at = time.monotonic() + FIGURES_WITHIN_S
    while (value := read_value(client, family)) != expected and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert value == expected


def wait_until(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + FIGURES_WITHIN_S
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.05)


def read_events(text: str) -> list[dict[str, Any]]:
    """Return the JSON of a stream's events; the stream must end as vLLM ends one."""
    lines = [line for line in text.splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_metric_families_types_and_labels(client: httpx.Client, model_name: str) -> None:
    client.post("/v1/chat/completions", json=chat(model_name)).raise_for_status()
    families = read_metrics(client)
    found = {
        name: (
            families[name].type,
            set().union(*(sample.labels for sample in families[name].samples)) - {"le"},
        )
        for name in FAMILIES
        if name in families
    }
    assert found == FAMILIES
    assert not set(GONE) & set(families)
    labels = {sample.labels["model_name"] for name in FAMILIES for sample in families[name].samples}
    assert labels == {model_name}


@pytest.mark.parametrize(
    ("family", "bucket_family"),
    [
        ("vllm:time_to_first_token_seconds", "time_to_first_token"),
        ("vllm:inter_token_latency_seconds", "inter_token_latency"),
        ("vllm:request_time_per_output_token_seconds", "inter_token_latency"),
        ("vllm:e2e_request_latency_seconds", "request_latency"),
    ],
)
def test_histograms_have_our_buckets(client: httpx.Client, family: str, bucket_family: str) -> None:
    samples = read_metrics(client)[family].samples
    edges = [float(sample.labels["le"]) for sample in samples if sample.name.endswith("_bucket")]
    assert edges == [*HISTOGRAM_BUCKETS[bucket_family], float("inf")]


def test_worker_runs_what_was_asked(client: httpx.Client, cpu_engine: CpuEngine) -> None:
    report = parse_engine_report(client.get("/metrics").text)
    assert find_fallbacks(build_cpu_small_profile(cpu_engine.model_dir), report) == ()
    assert report.kv_tokens
    assert report.kv_tokens > 100_000


def test_models_and_version(client: httpx.Client, model_name: str) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["max_model_len"], model["object"]) == (model_name, 4096, "model")
    assert client.get("/version").json() == {"version": "0.32.0"}
    assert client.get("/health").status_code == 200


def test_request_id_goes_in_and_out(client: httpx.Client, model_name: str) -> None:
    answer = client.post("/v1/chat/completions", json=chat(model_name), headers={"x-request-id": "ours-1"})
    assert answer.headers["x-request-id"] == "ours-1"
    assert answer.json()["id"] == "chatcmpl-ours-1"


def test_reply_carries_timing_and_cache_figures(client: httpx.Client, model_name: str) -> None:
    body = client.post("/v1/chat/completions", json=chat(model_name)).json()
    assert body["usage"]["completion_tokens"] == 8
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0
    assert {"time_to_first_token_ms", "queue_time_ms", "generation_time_ms", "mean_itl_ms"} <= set(body["metrics"])


def test_stream_begins_without_a_token_and_ends_with_done(client: httpx.Client, model_name: str) -> None:
    answer = client.post("/v1/chat/completions", json=chat(model_name, stream=True))
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = read_events(answer.text)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert not any("usage" in event for event in events)


def test_stream_tells_usage_when_asked(client: httpx.Client, model_name: str) -> None:
    body = chat(model_name, stream=True, stream_options={"include_usage": True})
    events = read_events(client.post("/v1/chat/completions", json=body).text)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 8
    assert "time_to_first_token_ms" in events[-1]["metrics"]


def test_same_prompt_same_text(client: httpx.Client, model_name: str) -> None:
    texts = {
        client.post("/v1/chat/completions", json=chat(model_name, max_tokens=24)).json()["choices"][0]["message"][
            "content"
        ]
        for _ in range(2)
    }
    assert len(texts) == 1


def test_partial_assistant_message_is_continued(client: httpx.Client, model_name: str) -> None:
    whole = client.post("/v1/chat/completions", json=chat(model_name, max_tokens=24)).json()
    text = whole["choices"][0]["message"]["content"]
    messages = [{"role": "user", "content": "Say something."}, {"role": "assistant", "content": text}]
    body = chat(model_name, messages=messages, continue_final_message=True, add_generation_prompt=False)
    more = client.post("/v1/chat/completions", json=body).json()
    # The prompt is the first one and what was generated, without a new turn between them.
    assert more["usage"]["prompt_tokens"] - whole["usage"]["prompt_tokens"] == pytest.approx(24, abs=6)
    assert more["choices"][0]["message"]["content"]


def test_tool_call_is_parsed(client: httpx.Client, model_name: str) -> None:
    fields = forced_tool_call("look", {"where": "left"})
    reply = client.post("/v1/chat/completions", json=chat(model_name, **fields, ignore_eos=False))
    (choice,) = reply.raise_for_status().json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert call["function"] == {"name": "look", "arguments": '{"where": "left"}'}


def test_forced_json_is_closed(client: httpx.Client, model_name: str) -> None:
    schema = {
        "type": "object",
        "properties": {"where": {"type": "string", "enum": ["left", "right"]}},
        "required": ["where"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    body = chat(model_name, response_format=form, max_tokens=64, ignore_eos=False)
    reply = client.post("/v1/chat/completions", json=body)
    text = reply.raise_for_status().json()["choices"][0]["message"]["content"]
    assert json.loads(text)["where"] in {"left", "right"}


def test_priority_is_accepted(client: httpx.Client, model_name: str) -> None:
    assert client.post("/v1/chat/completions", json=chat(model_name, priority=-5)).status_code == 200
    header = {"x-vllm-priority": "7"}
    assert client.post("/v1/chat/completions", json=chat(model_name), headers=header).status_code == 200


@pytest.mark.parametrize(
    ("path", "fields", "status", "param"),
    [
        ("/v1/chat/completions", {"model": "nope"}, 404, "model"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "far " * 5000}]}, 400, "input_tokens"),
        ("/v1/chat/completions", {"max_tokens": 100_000}, 400, "max_tokens"),
        ("/v1/chat/completions", {"temperature": -1}, 400, "temperature"),
        ("/v1/chat/completions", {"messages": "x"}, 400, None),
    ],
)
def test_errors_have_one_shape(
    client: httpx.Client, model_name: str, path: str, fields: dict[str, object], status: int, param: str | None
) -> None:
    answer = client.post(path, json=chat(model_name, **fields))
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    if param is not None:
        assert error["param"] == param


def test_an_aborted_stream_frees_the_worker_and_leaves_no_trace(client: httpx.Client, model_name: str) -> None:
    def aborted() -> float:
        return read_value(client, "vllm:request_success", finished_reason="abort")

    def generate_and_leave() -> float:
        """Tokens the worker made of an answer whose reader left at the first text."""
        wait_for_value(client, "vllm:num_requests_running", 0)
        generated = read_value(client, "vllm:generation_tokens")
        body = chat(model_name, stream=True, max_tokens=3000)
        with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()  # kept: httpx closes the connection of a reader that is thrown away
            while '"content":""' in (line := next(lines)) or not line:
                pass  # the role comes before the engine has begun; the first text shows that it has
        wait_until(lambda: read_value(client, "vllm:generation_tokens") > generated)  # what it says before is older
        wait_for_value(client, "vllm:num_requests_running", 0)
        return read_value(client, "vllm:generation_tokens") - generated

    before = aborted()
    # On a busy machine this small model may be done before its front has seen that the reader left: once suffices.
    assert any(0 < generate_and_leave() < 3000 for _ in range(6))
    # Why the ledger must live in the gateway: the worker does not count what it did not finish.
    assert aborted() == before


def test_tokens_are_counted(client: httpx.Client, model_name: str) -> None:
    wait_for_value(client, "vllm:num_requests_running", 0)
    before = read_value(client, "vllm:generation_tokens")
    usage = client.post("/v1/chat/completions", json=chat(model_name)).json()["usage"]
    wait_for_value(client, "vllm:generation_tokens", before + usage["completion_tokens"])


def test_memory_stays_in_the_budget(cpu_worker: EngineProcess) -> None:
    assert cpu_worker.read_resident_bytes() < 5e9
