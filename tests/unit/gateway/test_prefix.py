"""Marks of a prompt's beginnings: the same for the same beginning, whatever follows."""

import json
import random

import pytest

from service.gateway.members import split_members
from service.gateway.prefix import _GRID, find_marks


def talk(count, salt=1, seed=0, compact=True, length=600, **fields):
    """Marks of a conversation of ``count`` messages."""
    chance = random.Random(seed)
    messages = [{"role": "user", "content": "".join(chance.choices("abcdef },{", k=length))} for _ in range(count)]
    body = json.dumps({"model": "m", **fields, "messages": messages}, separators=(",", ":") if compact else None)
    return find_marks(split_members(body.encode()), salt)


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("count", [4, 40, 400])
def test_the_next_turn_knows_the_whole_turn_before(count, compact):
    before, after = talk(count, compact=compact), talk(count + 2, compact=compact)
    assert before[-1] in after
    assert before[-1] >> 32 > count * 600


def test_marks_grow_and_are_few():
    marks = talk(2000, length=3000)
    sizes = [mark >> 32 for mark in marks]
    assert sizes == sorted(sizes)
    assert len(marks) <= len(_GRID) + 8


def test_equal_beginnings_have_equal_marks_up_to_where_they_part():
    ours = set(talk(30, seed=1))
    assert not ours & set(talk(30, seed=2))
    assert len(ours & set(talk(60, seed=1))) >= 9


def test_tenants_are_kept_apart():
    assert not set(talk(10, salt=1)) & set(talk(10, salt=2))


def test_tools_and_system_come_before_the_conversation():
    tools = [{"type": "function", "function": {"name": "f" * 500}}]
    with_tools, bare = talk(10, tools=tools), talk(10)
    assert not set(with_tools) & set(bare)
    assert with_tools[0] in talk(2, seed=9, tools=tools)


def test_a_prompt_is_text_too():
    def complete(text):
        return find_marks(split_members(json.dumps({"model": "m", "prompt": text}).encode()), 1)

    assert complete("x" * 3000)[-2] in complete("x" * 3000 + "y" * 100)


def test_of_long_stretches_length_and_ends_are_hashed():
    def complete(text):
        return find_marks(split_members(json.dumps({"model": "m", "prompt": text}).encode()), 1)

    text = "x" * 1_000_000
    assert complete(text)[-1] != complete(text[:-1] + "y")[-1]
    assert complete(text)[-1] == complete(text[:600_000] + "y" + text[600_001:])[-1]


@pytest.mark.parametrize("body", [b'{"model":"m"}', b'{"input":1}'])
def test_a_body_without_a_prompt_has_no_marks(body):
    assert find_marks(split_members(body), 1) == ()


def test_the_hash_is_the_same_on_every_gateway():
    """A constant: replicas of another version or another process must agree."""
    assert find_marks(split_members(b'{"prompt":"%b"}' % (b"ab" * 600)), 5) == (
        1024 << 32 | 1958070680,
        1201 << 32 | 2509334381,
    )
