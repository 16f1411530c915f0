"""The unmodified ``anthropic`` SDK: messages, streamed and not, and counting tokens."""

from collections.abc import Iterator

import anthropic
import pytest
from anthropic.types import MessageParam

HELLO: list[MessageParam] = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def client(gateway_url: str, api_key: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway_url, api_key=api_key, max_retries=0, timeout=60) as opened:
        yield opened


def test_message(client: anthropic.Anthropic, model_name: str) -> None:
    reply = client.messages.create(model=model_name, max_tokens=8, messages=HELLO, system="Be brief.")
    assert reply.role == "assistant"
    assert reply.stop_reason in {"max_tokens", "end_turn"}
    assert 0 < reply.usage.output_tokens <= 8


def test_message_streamed(client: anthropic.Anthropic, model_name: str) -> None:
    with client.messages.stream(model=model_name, max_tokens=8, messages=HELLO) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].type == "text"
    assert final.content[0].text == text
    assert final.usage.output_tokens > 0


def test_events_come_in_order(client: anthropic.Anthropic, model_name: str) -> None:
    with client.messages.create(model=model_name, max_tokens=8, messages=HELLO, stream=True) as events:
        kinds = [event.type for event in events]
    assert (kinds[0], kinds[-2], kinds[-1]) == ("message_start", "message_delta", "message_stop")
    assert "content_block_delta" in kinds


def test_conversation(client: anthropic.Anthropic, model_name: str) -> None:
    first = client.messages.create(model=model_name, max_tokens=8, messages=HELLO)
    said: MessageParam = {"role": "assistant", "content": first.content}
    second = client.messages.create(
        model=model_name, max_tokens=8, messages=[*HELLO, said, {"role": "user", "content": "And then?"}]
    )
    assert second.usage.input_tokens > first.usage.input_tokens


def test_count_tokens_agrees_with_the_message(client: anthropic.Anthropic, model_name: str) -> None:
    counted = client.messages.count_tokens(model=model_name, messages=HELLO)
    sent = client.messages.create(model=model_name, max_tokens=1, messages=HELLO)
    assert counted.input_tokens == sent.usage.input_tokens


def test_errors(client: anthropic.Anthropic, model_name: str) -> None:
    with pytest.raises(anthropic.NotFoundError, match="nope"):
        client.messages.create(model="nope", max_tokens=8, messages=HELLO)
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model=model_name, max_tokens=8, messages=[{"role": "user", "content": "far " * 5000}])
