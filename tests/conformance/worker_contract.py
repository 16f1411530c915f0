"""The contract of a vLLM worker, checked over HTTP against any base URL: the emulator or a real vLLM.

Each check takes a ``Subject`` and raises ``AssertionError``. Families, kinds and labels are those of vLLM 0.32.0
(``v1/metrics/loggers.py``); what depends on options (speculation) is checked only where the subject says so.
"""

import json
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

ENGINE = frozenset({"model_name", "engine"})
FAMILIES = {
    "num_requests_running": ("gauge", ENGINE),
    "num_requests_waiting": ("gauge", ENGINE),
    "num_requests_waiting_by_reason": ("gauge", ENGINE | {"reason"}),
    "engine_sleep_state": ("gauge", ENGINE | {"sleep_state"}),
    "kv_cache_usage_perc": ("gauge", ENGINE),
    "prefix_cache_queries": ("counter", ENGINE),
    "prefix_cache_hits": ("counter", ENGINE),
    "external_prefix_cache_queries": ("counter", ENGINE),
    "external_prefix_cache_hits": ("counter", ENGINE),
    "mm_cache_queries": ("counter", ENGINE),
    "mm_cache_hits": ("counter", ENGINE),
    "estimated_flops_per_gpu": ("counter", ENGINE),
    "estimated_read_bytes_per_gpu": ("counter", ENGINE),
    "estimated_write_bytes_per_gpu": ("counter", ENGINE),
    "num_preemptions": ("counter", ENGINE),
    "prompt_tokens": ("counter", ENGINE),
    "prompt_tokens_by_source": ("counter", ENGINE | {"source"}),
    "prompt_tokens_cached": ("counter", ENGINE),
    "prompt_tokens_cached_by_source": ("counter", ENGINE | {"source"}),
    "generation_tokens": ("counter", ENGINE),
    "request_success": ("counter", ENGINE | {"finished_reason"}),
    "admission_rejections": ("counter", frozenset({"model_name", "reason"})),
    "request_prompt_tokens": ("histogram", ENGINE),
    "request_generation_tokens": ("histogram", ENGINE),
    "iteration_tokens_total": ("histogram", ENGINE),
    "request_max_num_generation_tokens": ("histogram", ENGINE),
    "request_params_n": ("histogram", ENGINE),
    "request_params_max_tokens": ("histogram", ENGINE),
    "time_to_first_token_seconds": ("histogram", ENGINE),
    "inter_token_latency_seconds": ("histogram", ENGINE),
    "request_time_per_output_token_seconds": ("histogram", ENGINE),
    "e2e_request_latency_seconds": ("histogram", ENGINE),
    "request_queue_time_seconds": ("histogram", ENGINE),
    "request_inference_time_seconds": ("histogram", ENGINE),
    "request_prefill_time_seconds": ("histogram", ENGINE),
    "request_decode_time_seconds": ("histogram", ENGINE),
    "request_num_preemptions": ("histogram", ENGINE),
    "request_prefill_kv_computed_tokens": ("histogram", ENGINE),
}
SPECULATION = {
    "spec_decode_num_drafts": ("counter", ENGINE),
    "spec_decode_num_draft_tokens": ("counter", ENGINE),
    "spec_decode_num_accepted_tokens": ("counter", ENGINE),
    "spec_decode_num_accepted_tokens_per_pos": ("counter", ENGINE | {"position"}),
}
LABEL_VALUES = {
    ("num_requests_waiting_by_reason", "reason"): {"capacity", "deferred"},
    ("request_success", "finished_reason"): {"stop", "length", "abort", "error", "repetition"},
    ("admission_rejections", "reason"): {"max_num_queued_reqs", "max_num_queued_tokens"},
    ("prompt_tokens_by_source", "source"): {"local_compute", "local_cache_hit", "external_kv_transfer"},
    ("engine_sleep_state", "sleep_state"): {"awake", "weights_offloaded", "discard_all"},
}
CACHE_INFO_LABELS = {
    "engine",
    "block_size",
    "cache_dtype",
    "enable_prefix_caching",
    "num_gpu_blocks",
    "kv_cache_size_tokens",
}
USER = [{"role": "user", "content": "Say something about queues."}]


@dataclass(frozen=True)
class Subject:
    """The worker under test."""

    client: httpx.Client
    model: str
    speculation: bool = False

    def post(self, path, **body):
        return self.client.post(path, json={"model": self.model, **body})


def read_events(response):
    """The data of each server-sent event."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    blocks = [block for block in response.text.split("\n\n") if block]
    assert all(block.startswith("data: ") for block in blocks), blocks
    return [block.removeprefix("data: ") for block in blocks]


def read_metrics(subject):
    response = subject.client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    families = {}
    for family in text_string_to_metric_families(response.text):
        if family.name.startswith("vllm:") and not family.name.endswith("_created"):
            families[family.name.removeprefix("vllm:")] = family
    return families


def total(families, name, **labels):
    """The sum of a counter's samples, or of a histogram's counts."""
    return sum(
        sample.value
        for sample in families[name].samples
        if sample.name.endswith(("_total", "_count")) and labels.items() <= sample.labels.items()
    )


def check_metric_families(subject):
    families = read_metrics(subject)
    expected = FAMILIES | (SPECULATION if subject.speculation else {})
    missing = expected.keys() - families.keys()
    assert not missing, missing
    for name, (kind, labels) in expected.items():
        family = families[name]
        assert family.type == kind, name
        assert family.documentation, name
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            assert sample.labels.keys() - {"le"} == labels, (name, sample.labels)
            assert sample.labels["model_name"] == subject.model
    for (name, label), values in LABEL_VALUES.items():
        assert {sample.labels[label] for sample in families[name].samples} == values, name
    (info,) = families["cache_config_info"].samples
    assert info.labels.keys() >= CACHE_INFO_LABELS
    assert int(info.labels["num_gpu_blocks"]) > 0
    assert "time_per_output_token_seconds" not in families
    assert "gpu_cache_usage_perc" not in families


def check_metrics_count_a_request(subject):
    before = read_metrics(subject)
    answer = subject.post("/v1/chat/completions", messages=USER, max_tokens=5, ignore_eos=True).json()
    after = read_metrics(subject)
    usage = answer["usage"]
    assert usage["completion_tokens"] == 5
    assert total(after, "generation_tokens") - total(before, "generation_tokens") == 5
    assert total(after, "prompt_tokens") - total(before, "prompt_tokens") == usage["prompt_tokens"]
    length = {"finished_reason": "length"}
    assert total(after, "request_success", **length) - total(before, "request_success", **length) == 1
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_time_per_output_token_seconds"):
        assert total(after, name) - total(before, name) == 1, name


def check_models(subject):
    listing = subject.client.get("/v1/models").json()
    assert listing["object"] == "list"
    (model,) = listing["data"]
    assert model["id"] == subject.model
    assert model["object"] == "model"
    assert model["owned_by"] == "vllm"
    assert isinstance(model["max_model_len"], int)
    assert isinstance(model["permission"], list)


def check_probes(subject):
    health = subject.client.get("/health")
    assert (health.status_code, health.content) == (200, b"")
    assert subject.client.get("/version").json().keys() == {"version"}
    assert subject.client.get("/load").json().keys() == {"server_load"}


def check_chat(subject):
    answer = subject.post("/v1/chat/completions", messages=USER, max_tokens=6, ignore_eos=True).json()
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == subject.model
    assert {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"} <= answer.keys()
    (choice,) = answer["choices"]
    assert {"index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids"} <= choice.keys()
    assert choice["finish_reason"] == "length"
    assert choice["message"]["role"] == "assistant"
    assert {"role", "content", "refusal", "reasoning"} <= choice["message"].keys()
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def check_chat_stream(subject):
    with subject.client.stream(
        "POST",
        "/v1/chat/completions",
        json={
            "model": subject.model,
            "messages": USER,
            "max_tokens": 8,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    ) as response:
        response.read()
        events = read_events(response)
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    first, last = chunks[0], chunks[-1]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["usage"]["completion_tokens"] == 0
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8
    assert "system_fingerprint" in last
    body = chunks[1:-1]
    finishes = [chunk["choices"][0]["finish_reason"] for chunk in body]
    assert finishes[-1] == "length"
    assert set(finishes[:-1]) <= {None}
    assert "stop_reason" in body[-1]["choices"][0]
    counts = [chunk["usage"]["completion_tokens"] for chunk in body]
    assert counts == sorted(counts)
    assert counts[-1] == 8
    for chunk in body:
        delta = chunk["choices"][0]["delta"]
        assert delta.keys() <= {"content", "reasoning", "tool_calls"}, delta
    assert any(
        chunk["choices"][0]["delta"].get("content") or chunk["choices"][0]["delta"].get("reasoning") for chunk in body
    )


def check_stream_without_usage(subject):
    response = subject.post("/v1/chat/completions", messages=USER, max_tokens=3, ignore_eos=True, stream=True)
    events = read_events(response)
    assert events[-1] == "[DONE]"
    assert all("usage" not in json.loads(event) for event in events[:-1])


def check_completion(subject):
    answer = subject.post("/v1/completions", prompt="Once", max_tokens=4, ignore_eos=True).json()
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"][0]["finish_reason"] == "length"
    events = read_events(subject.post("/v1/completions", prompt="Once", max_tokens=4, ignore_eos=True, stream=True))
    assert events[-1] == "[DONE]"
    assert all("text" in json.loads(event)["choices"][0] for event in events[:-1])


def check_errors(subject):
    unknown = subject.client.post("/v1/chat/completions", json={"model": "nope", "messages": USER})
    assert unknown.status_code == 404
    error = unknown.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("NotFoundError", "model", 404)
    headers = {"content-type": "application/json"}
    malformed = subject.client.post("/v1/chat/completions", content=b'{"a": ', headers=headers)
    assert malformed.status_code == 400
    assert malformed.json()["error"]["type"] == "Bad Request"
    missing = subject.post("/v1/chat/completions")
    assert missing.status_code == 400
    assert "body.messages" in missing.json()["error"]["param"]
    nothing = subject.client.get("/nothing")
    assert (nothing.status_code, nothing.json()) == (404, {"detail": "Not Found"})
    wrong = subject.client.get("/v1/chat/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    limit = subject.post("/v1/chat/completions", messages=USER, max_tokens=0).json()["error"]
    assert limit["message"] == "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"
    length = subject.client.get("/v1/models").json()["data"][0]["max_model_len"]
    long = subject.post("/v1/completions", prompt=[5] * (length + 1), max_tokens=1)
    assert long.status_code == 400
    assert long.json()["error"]["param"] == "input_tokens"


def check_tokenize(subject):
    answer = subject.post("/tokenize", prompt="hello world").json()
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] > 0
    assert subject.post("/detokenize", tokens=answer["tokens"]).json() == {"prompt": "hello world"}


def check_request_id(subject):
    body = {"model": subject.model, "messages": USER, "max_tokens": 1}
    answer = subject.client.post("/v1/chat/completions", json=body, headers={"x-request-id": "abc"}).json()
    assert answer["id"] == "chatcmpl-abc"


def check_messages(subject):
    body = {"messages": USER, "max_tokens": 4}
    answer = subject.post("/v1/messages", **body).json()
    assert (answer["type"], answer["role"]) == ("message", "assistant")
    assert answer["usage"]["output_tokens"] <= 4
    assert answer["content"]
    response = subject.post("/v1/messages", stream=True, **body)
    names = [line.removeprefix("event: ") for line in response.text.splitlines() if line.startswith("event: ")]
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    assert names.count("content_block_start") == names.count("content_block_stop")
    refused = subject.client.post("/v1/messages", json={"model": "nope", **body})
    assert refused.status_code == 404
    assert refused.json()["type"] == "error"
    assert subject.post("/v1/messages/count_tokens", messages=USER).json()["input_tokens"] > 0


def check_responses(subject):
    answer = subject.post("/v1/responses", input="Hi", max_output_tokens=4).json()
    assert answer["object"] == "response"
    assert answer["usage"]["output_tokens"] <= 4
    response = subject.post("/v1/responses", input="Hi", max_output_tokens=4, stream=True)
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] == "response.completed"
    assert list(events[-1]) == sorted(events[-1])
    lost = subject.client.get("/v1/responses/resp_unknown")
    assert (lost.status_code, lost.json()["error"]["param"]) == (404, "response_id")


CHECKS = (
    check_metric_families,
    check_metrics_count_a_request,
    check_models,
    check_probes,
    check_chat,
    check_chat_stream,
    check_stream_without_usage,
    check_completion,
    check_errors,
    check_tokenize,
    check_request_id,
    check_messages,
    check_responses,
)
