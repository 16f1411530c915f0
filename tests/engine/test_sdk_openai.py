"""The unmodified ``openai`` SDK: chat, completions, responses; streamed and not; its error classes."""

import asyncio
import json
from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.support.forced_output import forced_text, forced_tool_call


@pytest.fixture(scope="module")
def client(gateway_url: str, api_key: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway_url}/v1", api_key=api_key, max_retries=0, timeout=60) as opened:
        yield opened


def test_models(client: openai.OpenAI, model_name: str) -> None:
    assert model_name in [model.id for model in client.models.list()]


def test_chat(client: openai.OpenAI, model_name: str) -> None:
    reply = client.chat.completions.create(
        model=model_name, messages=[{"role": "user", "content": "Hello"}], max_tokens=12, temperature=0
    )
    assert reply.choices[0].finish_reason in {"length", "stop"}
    assert reply.choices[0].message.role == "assistant"
    assert reply.usage is not None
    assert 0 < reply.usage.completion_tokens <= 12


def test_text_arrives_untouched(client: openai.OpenAI, model_name: str) -> None:
    text = 'Grüße, "世界" 🙂\n\ttab \\ back'
    hello: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Hello"}]
    forced = forced_text(text)
    reply = client.chat.completions.create(model=model_name, messages=hello, extra_body=forced)
    assert reply.choices[0].message.content == text
    with client.chat.completions.create(model=model_name, messages=hello, extra_body=forced, stream=True) as chunks:
        parts = [chunk.choices[0].delta.content or "" for chunk in chunks]
    assert "".join(parts) == text
    assert len(parts) > 5


def test_chat_stream_with_usage(client: openai.OpenAI, model_name: str) -> None:
    with client.chat.completions.create(
        model=model_name,
        messages=[{"role": "user", "content": "Hello"}],
        max_completion_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    ) as chunks:
        received = list(chunks)
    assert received[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in received if chunk.choices][-1] == "length"
    assert received[-1].choices == []
    assert received[-1].usage is not None
    assert received[-1].usage.completion_tokens == 12


def test_chat_stream_without_usage(client: openai.OpenAI, model_name: str) -> None:
    with client.chat.completions.create(
        model=model_name, messages=[{"role": "user", "content": "Hello"}], max_tokens=4, stream=True
    ) as chunks:
        assert all(chunk.usage is None for chunk in chunks)


def test_conversation_of_several_turns(client: openai.OpenAI, model_name: str) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "system", "content": "Be brief."}]
    prompt_sizes = []
    for turn in range(4):
        messages.append({"role": "user", "content": f"Turn {turn}"})
        reply = client.chat.completions.create(
            model=model_name, messages=messages, max_tokens=8, extra_body={"ignore_eos": True}
        )
        messages.append({"role": "assistant", "content": reply.choices[0].message.content})
        assert reply.usage is not None
        prompt_sizes.append(reply.usage.prompt_tokens)
    assert prompt_sizes == sorted(set(prompt_sizes))


def test_tool_call_and_its_result(client: openai.OpenAI, model_name: str) -> None:
    fields = forced_tool_call("look", {"where": "left"})
    question: ChatCompletionMessageParam = {"role": "user", "content": "What is on the left?"}
    reply = client.chat.completions.create(model=model_name, messages=[question], extra_body=fields)
    (call,) = reply.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "look"
    assert json.loads(call.function.arguments) == {"where": "left"}
    result: ChatCompletionMessageParam = {"role": "tool", "tool_call_id": call.id, "content": "a tree"}
    answer = client.chat.completions.create(
        model=model_name,
        messages=[question, reply.choices[0].message.to_dict(), result],  # type: ignore[list-item]
        max_tokens=8,
    )
    assert answer.choices[0].finish_reason in {"length", "stop"}


def test_tool_call_streamed(client: openai.OpenAI, model_name: str) -> None:
    fields = forced_tool_call("look", {"where": "right"})
    name, arguments, reason = "", "", None
    with client.chat.completions.create(
        model=model_name, messages=[{"role": "user", "content": "Look"}], stream=True, extra_body=fields
    ) as chunks:
        for chunk in chunks:
            reason = chunk.choices[0].finish_reason or reason
            for call in chunk.choices[0].delta.tool_calls or []:
                assert call.function is not None
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert (name, json.loads(arguments), reason) == ("look", {"where": "right"}, "tool_calls")


def test_completions(client: openai.OpenAI, model_name: str) -> None:
    reply = client.completions.create(model=model_name, prompt="Once upon a time", max_tokens=6, n=2, temperature=1)
    assert [choice.index for choice in reply.choices] == [0, 1]
    with client.completions.create(model=model_name, prompt="Once upon", max_tokens=6, stream=True) as chunks:
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] in {"length", "stop"}


def test_responses(client: openai.OpenAI, model_name: str) -> None:
    reply = client.responses.create(model=model_name, input="Hello", max_output_tokens=8, temperature=0)
    assert reply.usage is not None
    assert reply.usage.output_tokens > 0
    assert reply.output_text is not None


def test_responses_streamed(client: openai.OpenAI, model_name: str) -> None:
    with client.responses.create(model=model_name, input="Hello", max_output_tokens=8, stream=True) as events:
        kinds = [event.type for event in events]
    assert kinds[0] == "response.created"
    assert "response.output_text.delta" in kinds
    assert kinds[-1] in {"response.completed", "response.incomplete"}


def test_many_at_once_with_the_async_client(gateway_url: str, api_key: str, model_name: str) -> None:
    async def ask_all() -> list[int]:
        async with openai.AsyncOpenAI(base_url=f"{gateway_url}/v1", api_key=api_key, max_retries=0) as client:

            async def ask(number: int) -> int:
                chunks = await client.chat.completions.create(
                    model=model_name,
                    messages=[{"role": "user", "content": f"Number {number}"}],
                    max_tokens=8,
                    stream=True,
                    extra_body={"ignore_eos": True},
                )
                async with chunks:
                    return len([chunk async for chunk in chunks])

            return await asyncio.gather(*(ask(number) for number in range(12)))

    assert all(count > 1 for count in asyncio.run(ask_all()))


def test_wrong_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "Hello"}])
    assert isinstance(raised.value.body, dict)
    assert "nope" in raised.value.body["message"]


def test_bad_requests(client: openai.OpenAI, model_name: str) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            model=model_name, messages=[{"role": "user", "content": "Hello"}], temperature=-1
        )
    with pytest.raises(openai.BadRequestError, match="context length"):
        client.chat.completions.create(model=model_name, messages=[{"role": "user", "content": "far " * 5000}])
