"""What the emulated worker says on the wire, on real sockets, in-process."""

import json

import anthropic
import openai
import pytest

from service.emulator.config import EmulatorConfig
from service.emulator.server import start_worker
from tests.support.raw_client import RawClient, chat, until

pytestmark = pytest.mark.integration
CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"properties": {"where": {"type": "string"}}}}}


async def start(**options):
    return await start_worker(EmulatorConfig(**{"port": 0, "profile": "instant", **options}))


async def ask(running, method, path, body=b"", headers=()):
    async with await RawClient.connect(running.port) as client:
        return await client.ask(method, path, body, headers)


async def test_stream_has_one_event_per_chunk_and_ends_with_done():
    async with await start() as running:
        answer = await ask(running, "POST", CHAT, chat(stream=True, stream_options={"include_usage": True}))
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.chunks[-1] == b"data: [DONE]\n\n"
    assert all(one.startswith(b"data: ") and one.endswith(b"\n\n") and one.count(b"\n\n") == 1 for one in answer.chunks)
    events = answer.events()
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[0]["prompt_token_ids"] is None
    assert events[-1]["usage"]["completion_tokens"] == 8
    assert events[-2]["choices"][0]["finish_reason"] == "length"


async def test_streamed_and_plain_text_are_equal():
    async with await start() as running:
        streamed = await ask(running, "POST", CHAT, chat(stream=True, seed=4))
        plain = await ask(running, "POST", CHAT, chat(seed=4))
        other = await ask(running, "POST", CHAT, chat(seed=5))
    said = "".join(event["choices"][0]["delta"].get("content", "") for event in streamed.events())
    assert said == plain.json()["choices"][0]["message"]["content"]
    assert said != other.json()["choices"][0]["message"]["content"]


async def test_reasoning_precedes_content_and_is_counted():
    async with await start(profile="m3.1-flash", enable_force_include_usage=True) as running:
        answer = await ask(running, "POST", CHAT, chat(stream=True, max_tokens=20))
        plain = await ask(running, "POST", CHAT, chat(max_tokens=20))
    deltas = [event["choices"][0]["delta"] for event in answer.events() if event["choices"]]
    kinds = [next(iter(delta)) for delta in deltas[1:]]
    assert kinds == sorted(kinds, key=lambda kind: kind != "reasoning")
    assert {"reasoning", "content"} == set(kinds)
    assert answer.events()[1]["usage"]["completion_tokens_details"]["reasoning_tokens"] >= 1
    assert answer.events()[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 8}
    message = plain.json()["choices"][0]["message"]
    assert len(message["reasoning"]) == 8 * 4
    assert len(message["content"]) == 12 * 4


async def test_several_choices_logprobs_and_token_ids():
    async with await start() as running:
        body = chat(n=2, logprobs=True, top_logprobs=2, return_token_ids=True, max_tokens=3)
        plain = (await ask(running, "POST", CHAT, body)).json()
        streamed = await ask(running, "POST", CHAT, body | {"stream": True})
        completions = (await ask(running, "POST", "/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2})).json()
        listed = await ask(
            running,
            "POST",
            "/v1/completions",
            {"prompt": "ab", "logprobs": 1, "echo": True, "stream": True, "return_token_ids": True},
        )
    assert [choice["index"] for choice in plain["choices"]] == [0, 1]
    texts = {choice["message"]["content"] for choice in plain["choices"]}
    assert len(texts) == 2
    assert plain["usage"]["completion_tokens"] == 6
    entry = plain["choices"][0]["logprobs"]["content"][0]
    assert entry["token"] == plain["choices"][0]["message"]["content"][:4]
    assert len(entry["top_logprobs"]) == 2
    assert len(plain["choices"][0]["token_ids"]) == 3
    assert len(plain["prompt_token_ids"]) == plain["usage"]["prompt_tokens"]
    finishes = [event["choices"][0]["index"] for event in streamed.events() if event["choices"][0]["finish_reason"]]
    assert sorted(finishes) == [0, 1]
    assert len(completions["choices"]) == 2
    assert listed.events()[0]["choices"][0]["text"].startswith("ab ")
    assert (
        listed.events()[0]["choices"][0]["logprobs"]["tokens"][0] == "ab " + listed.events()[0]["choices"][0]["text"][3]
    )


async def test_tool_calls_in_stream_and_plain():
    async with await start() as running:
        for choice, finish in (
            ("required", "tool_calls"),
            ({"type": "function", "function": {"name": "look"}}, "stop"),
        ):
            body = chat(tools=[TOOL], tool_choice=choice, max_tokens=100)
            plain = (await ask(running, "POST", CHAT, body)).json()["choices"][0]
            events = (await ask(running, "POST", CHAT, body | {"stream": True})).events()
            (call,) = plain["message"]["tool_calls"]
            assert json.loads(call["function"]["arguments"]) == {"where": "kap lom"}
            assert plain["finish_reason"] == finish
            calls = [
                delta["tool_calls"][0] for event in events if (delta := event["choices"][0]["delta"]).get("tool_calls")
            ]
            assert calls[0]["function"]["name"] == "look"
            assert "".join(one["function"].get("arguments", "") for one in calls) == call["function"]["arguments"]
            assert events[-1]["choices"][0]["finish_reason"] == finish


async def test_prefix_hits_show_in_usage_and_metrics():
    async with await start(enable_prompt_tokens_details=True, enable_per_request_metrics=True) as running:
        body = chat(messages=[{"role": "user", "content": "x" * 4000}])
        first = (await ask(running, "POST", CHAT, body)).json()
        second = (await ask(running, "POST", CHAT, body)).json()
        salted = (await ask(running, "POST", CHAT, body | {"cache_salt": "other"})).json()
    cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in (first, second, salted)]
    assert cached == [0, 7 * 128, 0]
    assert second["metrics"]["queue_time_ms"] >= 0


async def test_too_long_prompts_are_refused_and_long_answers_clamped():
    async with await start(max_model_len=100) as running:
        refused = await ask(running, "POST", "/v1/completions", {"prompt": "x" * 400, "max_tokens": 1})
        clamped = await ask(running, "POST", "/v1/completions", {"prompt": "x" * 380, "max_tokens": 500})
    assert refused.status == 400
    assert refused.json()["error"]["param"] == "input_tokens"
    assert clamped.json()["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 95,
        "completion_tokens": 5,
        "total_tokens": 100,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


async def test_guards_and_small_routes():
    async with await start(api_key="sk-1", enable_request_id_headers=True, enable_server_load_tracking=True) as running:
        assert (await ask(running, "GET", "/v1/models")).json() == {"error": "Unauthorized"}
        key = "authorization: bearer sk-1"
        assert (await ask(running, "GET", "/v1/models", headers=[key])).status == 200
        answer = await ask(
            running, "POST", CHAT, chat(), [key, "x-request-id: r1", "endpoint-load-metrics-format: TEXT"]
        )
        assert answer.headers["x-request-id"] == "r1"
        assert answer.json()["id"] == "chatcmpl-r1"
        assert answer.headers["endpoint-load-metrics"].startswith("TEXT named_metrics.num_requests_waiting=")
        shaped = await ask(running, "POST", CHAT, chat(), [key, "endpoint-load-metrics-format: JSON"])
        assert json.loads(shaped.headers["endpoint-load-metrics"].removeprefix("JSON "))["named_metrics"]
        for method, path, status in (
            ("GET", "/ping", 200),
            ("POST", "/ping", 200),
            ("HEAD", "/health", 405),
            ("POST", "/health", 405),
            ("GET", "/load", 200),
            ("GET", "/tokenize", 405),
            ("POST", "/v1/embeddings", 404),
            ("GET", "/v1/responses/resp_1", 404),
            ("POST", "/v1/responses/resp_1/cancel", 404),
            ("DELETE", "/v1/responses/resp_1", 405),
            ("GET", "/v1/responses/resp_1/other", 404),
        ):
            async with await RawClient.connect(running.port) as client:
                client.send(method, path, headers=[key])
                assert (await client.head())[0] == status, path
        wrong = await ask(running, "POST", CHAT, b"{}", [key, "content-type: text/plain"])
        assert (wrong.status, wrong.json()["error"]["type"]) == (400, "Bad Request")
        refused = await ask(running, "POST", "/v1/messages", {"messages": [], "max_tokens": 3, "model": "x"}, [key])
        assert refused.json()["type"] == "error"
        background = await ask(running, "POST", "/v1/responses", {"input": "x", "background": True}, [key])
        assert background.json()["error"]["param"] == "background"
        tokens = (await ask(running, "POST", "/tokenize", {"prompt": "hello", "return_token_strs": True})).json()
        assert tokens["token_strs"] == ["hell", "o"]
        assert (await ask(running, "POST", "/tokenize", {"messages": []})).json()["count"] > 0


async def test_valve_refuses_with_503_and_counts():
    async with await start(profile="cpu-small", max_num_queued_reqs=1) as running:
        async with await RawClient.connect(running.port) as busy:
            busy.send("POST", CHAT, chat(stream=True, max_tokens=2000))
            await busy.head()
            refused = await ask(running, "POST", CHAT, chat())
        metrics = (await ask(running, "GET", "/metrics")).body.decode()
    assert refused.status == 503
    error = refused.json()["error"]
    assert error["message"].startswith("The engine is currently busy")
    assert (error["type"], error["param"], error["code"]) == ("Service Unavailable", None, 503)
    assert "retry-after" not in refused.headers
    assert 'admission_rejections_total{model_name="MiniMax-M3.1-Flash",reason="max_num_queued_reqs"} 1.0' in metrics


async def test_priority_header_counts_under_priority_scheduling():
    async with (
        await start(profile="cpu-small", max_num_seqs=1, scheduling_policy="priority") as running,
        await RawClient.connect(running.port) as first,
        await RawClient.connect(running.port) as late,
    ):
        first.send("POST", CHAT, chat(max_tokens=100))
        await until(lambda: running.worker.engine.stats().running == 1)
        late.send("POST", CHAT, chat(max_tokens=100, priority=9))
        await until(lambda: running.worker.engine.stats().waiting == 1)
        urgent = await ask(running, "POST", CHAT, chat(max_tokens=1), ["x-vllm-priority: -5"])
        assert urgent.status == 200
        assert running.worker.engine.stats().running == 1  # the late one has only begun
        assert (await first.answer()).status == 200
        assert (await late.answer()).status == 200


async def test_a_client_that_leaves_frees_the_engine_and_is_not_counted():
    async with await start(profile="cpu-small") as running:
        engine = running.worker.engine
        async with await RawClient.connect(running.port) as client:
            client.send("POST", CHAT, chat(stream=True, max_tokens=3000))
            await client.head()
            await client.chunk()
        await until(lambda: engine.stats().running == 0)
        assert engine.stats().generation_tokens < 1000
        log = (await ask(running, "GET", "/emulator/requests")).json()["requests"]
        metrics = (await ask(running, "GET", "/metrics")).body.decode()
    assert log[0]["state"] == "client_closed"
    assert log[0]["closed_at"] is not None
    assert log[0]["body"]["max_tokens"] == 3000
    success = [line for line in metrics.splitlines() if line.startswith("vllm:request_success_total")]
    assert len(success) == 5
    assert all(line.endswith(" 0.0") for line in success)


async def test_a_slow_reader_gets_merged_deltas():
    async with await start(profile="cpu-small") as running, await RawClient.connect(running.port) as client:
        client.send("POST", CHAT, chat(stream=True, max_tokens=60))
        await client.head()
        connection = next(iter(running.worker.connections))
        connection.pause_writing()
        await until(lambda: running.worker.engine.stats().running == 0)
        connection.resume_writing()
        chunks = []
        while data := await client.chunk():
            chunks.append(data)
        await until(lambda: not running.worker.generations)
    text = b"".join(chunks).decode().split("\n\n")
    assert len(text) < 20
    said = "".join(json.loads(one[6:])["choices"][0]["delta"]["content"] for one in text if one.startswith("data: {"))
    assert len(said) == 60 * 4


async def test_connections_are_kept_reused_pipelined_and_timed_out():
    async with await start(timeout_keep_alive=0.05) as running:
        async with await RawClient.connect(running.port) as client:
            assert (await client.ask("POST", CHAT, chat())).status == 200
            client.send("POST", CHAT, chat(max_tokens=3))
            client.send("GET", "/version")
            assert (await client.answer()).json()["usage"]["completion_tokens"] == 3
            assert (await client.answer()).json() == {"version": "0.32.0"}
            assert await client.closed() == b""  # idle for longer than the timeout
        async with await RawClient.connect(running.port) as client:
            answer = await client.ask("GET", "/version", headers=["connection: close"])
            assert answer.headers["connection"] == "close"
            assert await client.closed() == b""
        async with await RawClient.connect(running.port) as client:
            client.send("POST", CHAT, chat(stream=True), version="1.0")
            answer = await client.answer()
            assert answer.body.endswith(b"data: [DONE]\n\n")
        async with await RawClient.connect(running.port) as client:
            client.writer.write(b"NOT HTTP\r\n\r\n")
            assert (await client.answer()).status == 400
        async with await RawClient.connect(running.port) as client:
            client.send("POST", "/tokenize", {"prompt": "a"}, ["expect: 100-continue"])
            assert (await client.head())[0] == 100
            assert (await client.answer()).status == 200


async def test_unmodified_clients_work():
    async with await start(profile="m3.1-flash") as running:
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="x", max_retries=0) as client:
            answer = await client.chat.completions.create(
                model="MiniMax-M3.1-Flash", messages=[{"role": "user", "content": "hi"}], max_tokens=12
            )
            assert answer.usage.completion_tokens == 12
            stream = await client.chat.completions.create(
                model="MiniMax-M3.1-Flash", messages=[{"role": "user", "content": "hi"}], max_tokens=12, stream=True
            )
            said = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert "".join(said) == answer.choices[0].message.content
            response = await client.responses.create(model="MiniMax-M3.1-Flash", input="hi", max_output_tokens=12)
            assert response.status == "incomplete"
            events = await client.responses.create(
                model="MiniMax-M3.1-Flash", input="[[call]]", stream=True, tools=[{"type": "function", "name": "look",
                "parameters": {"properties": {"a": {"type": "integer"}}}, "strict": False}]
            )  # fmt: skip
            kinds = [event.type async for event in events]
            assert kinds[0] == "response.created"
            assert kinds[-1] == "response.completed"
            assert "response.function_call_arguments.done" in kinds
            assert "response.reasoning_text.delta" in kinds
            called = await client.responses.create(
                model="MiniMax-M3.1-Flash", input="[[call]]", tools=[{"type": "function", "name": "look",
                "parameters": {"properties": {"a": {"type": "integer"}}}, "strict": False}]
            )  # fmt: skip
            assert called.output[-1].type == "function_call"
        async with anthropic.AsyncAnthropic(base_url=running.url, api_key="x", max_retries=0) as claude:
            asked = {"model": "MiniMax-M3.1-Flash", "messages": [{"role": "user", "content": "hi"}]}
            message = await claude.messages.create(max_tokens=12, **asked)
            assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 12)
            assert [block.type for block in message.content] == ["thinking", "text"]
            async with claude.messages.stream(max_tokens=12, **asked) as stream:
                assert (await stream.get_final_message()).content[1].text == message.content[1].text
            counted = await claude.messages.count_tokens(**asked)
            assert counted.input_tokens == message.usage.input_tokens
            tools = [{"name": "look", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}]
            used = await claude.messages.create(max_tokens=90, tools=tools, tool_choice={"type": "any"}, **asked)
            assert (used.stop_reason, used.content[-1].input) == ("tool_use", {"a": 7})
            async with claude.messages.stream(
                max_tokens=90, tools=tools, tool_choice={"type": "any"}, **asked
            ) as stream:
                assert (await stream.get_final_message()).content[-1].input == {"a": 7}
            ended = await claude.messages.create(max_tokens=90, stop_sequences=[" "], **asked)
            assert (ended.stop_reason, ended.stop_sequence) == ("stop_sequence", " ")


async def test_a_stream_cut_on_one_worker_continues_on_another():
    async with await start() as first, await start() as second:
        whole = (await ask(first, "POST", CHAT, chat(max_tokens=20))).json()["choices"][0]["message"]["content"]
        partial = whole[:28]
        body = chat(max_tokens=13, continue_final_message=True, add_generation_prompt=False, stream=True)
        body["messages"] = [*body["messages"], {"role": "assistant", "content": partial}]
        events = (await ask(second, "POST", CHAT, body)).events()
    rest = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert partial + rest == whole


async def test_the_request_log_is_bounded_and_can_be_off():
    async with await start(request_log=2) as running:
        for _ in range(3):
            await ask(running, "POST", CHAT, chat())
        log = (await ask(running, "GET", "/emulator/requests")).json()["requests"]
        assert [record["serial"] for record in log] == [1, 2]
        later = (await ask(running, "GET", "/emulator/requests?since=1")).json()["requests"]
        assert [record["serial"] for record in later] == [2]
        assert later[0]["status"] == 200
        assert later[0]["tokens"] == 8
        running.worker.log.clear()
        await ask(running, "POST", "/tokenize", b"\xff{")
        assert (await ask(running, "GET", "/emulator/requests")).json()["requests"][0]["body"] == "�{"
    async with await start(request_log=0) as running:
        await ask(running, "POST", CHAT, chat())
        assert (await ask(running, "GET", "/emulator/requests")).json() == {"requests": []}


async def test_draft_figures_per_request():
    options = {"profile": "m3.1-flash", "per_request_spec_decode_metrics": "summary"}
    async with await start(enable_per_request_metrics=True, **options) as running:
        plain = (await ask(running, "POST", CHAT, chat(max_tokens=60))).json()
    figures = plain["metrics"]["speculative_decoding"]
    assert figures["num_spec_tokens"] == 7
    assert figures["num_draft_tokens"] == 7 * figures["num_spec_steps"]
    accepted = figures["num_accepted_draft_tokens"]
    assert 59 <= accepted + figures["num_spec_steps"] <= 59 + 7  # the last step may overshoot
    assert figures["mean_acceptance_length"] == 1 + accepted / figures["num_spec_steps"]
    async with await start(**options) as running:
        body = chat(max_tokens=20, stream=True, stream_options={"include_usage": True})
        events = (await ask(running, "POST", CHAT, body)).events()
    assert events[-1]["metrics"].keys() == {"speculative_decoding"}


async def test_metrics_ride_on_every_dialect():
    async with await start(enable_per_request_metrics=True) as running:
        usage = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        listed = (await ask(running, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 3, **usage})).events()
        response = (await ask(running, "POST", "/v1/responses", {"input": "a", "max_output_tokens": 1})).json()
    assert [event["usage"]["completion_tokens"] for event in listed] == [1, 2, 3, 3]
    assert listed[-1]["metrics"]["generation_time_ms"] >= 0
    assert response["metrics"]["mean_itl_ms"] is None
    assert response["usage"]["output_tokens"] == 1


async def test_reasoning_and_content_may_share_a_chunk():
    async with await start(profile="m3.1-flash") as running:
        for seed in range(40):
            events = (await ask(running, "POST", CHAT, chat(stream=True, max_tokens=10, seed=seed))).events()
            if any(event["choices"][0]["delta"].keys() == {"reasoning", "content"} for event in events):
                break
        else:
            pytest.fail("no step crossed from reasoning to content")


async def test_echo_of_a_continued_message():
    async with await start() as running:
        body = chat(continue_final_message=True, add_generation_prompt=False, echo=True, stream=True)
        body["messages"] = [*body["messages"], {"role": "assistant", "content": " kap"}]
        events = (await ask(running, "POST", CHAT, body)).events()
    assert events[1]["choices"][0]["delta"] == {"content": " kap"}
