"""Decides what the emulated tokenizer and chat template make of a request: a token is four bytes of UTF-8.

That is close to what real tokenizers reach on English text and code, costs nothing, and is exactly reversible.
Prompts with a common beginning have common first blocks, so prefix reuse behaves as in a real worker. A tail of fewer
than four bytes is a token that carries its length.
"""

from __future__ import annotations

from service.emulator.fields import Fields, as_fields, as_list

TOKEN_BYTES = 4
MEDIA_BYTES = 1024
"""An image or video part counts as 256 tokens. A guess: real counts depend on resolution and frames."""


def encode(text: str | bytes) -> list[int]:
    """Token ids of a text."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    whole = len(data) - len(data) % TOKEN_BYTES
    ids = memoryview(data[:whole]).cast("I").tolist()
    if whole < len(data):
        tail = data[whole:]
        ids.append((len(tail) << 32) | int.from_bytes(tail, "little"))
    return ids


def decode(ids: list[int]) -> str:
    """The text of token ids; ids that no text has become question marks."""
    parts: list[bytes] = []
    for token in ids:
        length = (token >> 32) or TOKEN_BYTES
        if 0 < length <= TOKEN_BYTES and token >= 0:
            parts.append((token & 0xFFFFFFFF).to_bytes(TOKEN_BYTES, "little")[:length])
        else:
            parts.append(b"?")
    return b"".join(parts).decode("utf-8", "replace")


def count_tokens(data: bytes) -> int:
    """How many tokens ``encode`` makes of this text."""
    return -(-len(data) // TOKEN_BYTES)


def hash_blocks(data: bytes, block_size: int, salt: str) -> tuple[int, ...]:
    """A chained hash per full block of the prompt; requests with different salts share nothing."""
    width = block_size * TOKEN_BYTES
    chain = hash(salt)
    hashes = []
    for start in range(0, len(data) - width + 1, width):
        chain = hash((chain, data[start : start + width]))
        hashes.append(chain)
    return tuple(hashes)


def flatten(content: object) -> str:
    """The text of a content, a string or a list of parts; media become filler named by their source."""
    if isinstance(content, str):
        return content
    parts: list[str] = []
    for part in as_list(content):
        fields = as_fields(part)
        text = fields.get("text")
        if isinstance(text, str):
            parts.append(text)
        elif isinstance(part, str):
            parts.append(part)
        elif fields:
            parts.append(repr(sorted(fields.items(), key=lambda item: item[0]))[:MEDIA_BYTES].ljust(MEDIA_BYTES))
    return "".join(parts)


def render_chat(messages: list[object], tools: list[object], open_last: bool) -> bytes:
    """The prompt of a conversation. ``open_last`` leaves the last message unfinished, to be continued."""
    parts: list[str] = []
    if tools:
        parts.append(f"<tools>{tools!r}</tools>\n")
    for index, message in enumerate(messages):
        fields: Fields = as_fields(message)
        calls = fields.get("tool_calls")
        text = flatten(fields.get("content")) + (repr(calls) if calls else "")
        parts.append(f"<|{fields.get('role', 'user')}|>{text}")
        if not (open_last and index == len(messages) - 1):
            parts.append("<|end|>\n")
    if not open_last:
        parts.append("<|assistant|>")
    return "".join(parts).encode("utf-8", "replace")
