"""What is read of a body agrees with Python's own decoder; what is rendered holds the same members."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.gateway import members
from service.gateway.members import PeekError, split_members
from service.gateway.peek import _STRIPPED, peek

EXTRA = b'"cache_salt":"s","ours":[1],'
OURS = {"cache_salt": "s", "ours": [1]}
KNOWN = [
    "model",
    "stream",
    "max_tokens",
    "max_completion_tokens",
    "service_tier",
    "previous_response_id",
    "stream_options",
    "priority",
    "cache_salt",
    "x",
    "messages",
    "ключ",
    'q"\\',
    "",
]
INT64 = 2**63


def contain_half_pairs(text):
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["m", "auto", "true", "\U0001f600", "\\u0041"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KNOWN), inner, max_size=3),
    max_leaves=6,
)
options = st.dictionaries(st.sampled_from(["include_usage", "continuous_usage_stats", "a"]), scalars, max_size=3)
pairs = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(KNOWN), values),
        st.tuples(st.just("model"), st.just("m")),
        st.tuples(st.just("stream"), st.booleans()),
        st.tuples(st.sampled_from(["max_tokens", "max_completion_tokens"]), st.integers(-5, 2**64)),
        st.tuples(st.just("stream_options"), options | st.none()),
    ),
    max_size=7,
)


@st.composite
def bodies(draw):
    """An object as text, members in any order and perhaps twice, keys perhaps escaped, with odd white space."""
    compact = draw(st.booleans())
    space = st.just("") if compact else st.sampled_from(["", " ", "\n", "\t \r\n", ", "[1:]])
    written = []
    for key, value in draw(pairs):
        name = json.dumps(key, ensure_ascii=draw(st.booleans()))
        if key and draw(st.integers(0, 5)) == 0:
            name = f'"\\u{ord(key[0]):04x}' + json.dumps(key[1:])[1:]
        text = json.dumps(
            value, ensure_ascii=draw(st.booleans()), separators=draw(st.sampled_from([(",", ":"), (", ", ": ")]))
        )
        written.append(draw(space) + name + draw(space) + ":" + draw(space) + text + draw(space))
    whole = draw(space) + "{" + (",".join(written) or draw(space)) + "}" + draw(space)
    if draw(st.integers(0, 9)) == 0:
        cut = draw(st.integers(0, len(whole)))
        whole = (
            whole[:cut]
            + draw(st.sampled_from(["", "}", ",", '"', "\x00", "NaN", "[", "\\"]))
            + whole[cut + draw(st.integers(0, 1)) :]
        )
    return whole.encode("utf-8", "surrogatepass")


def load_strictly(body):
    """The members, by Python's decoder and the rules that hold for the whole body."""

    def refuse(text):
        raise ValueError(text)

    top = []

    def keep(found):
        top[:] = found
        return dict(found)

    body.decode("utf-8")
    whole = json.loads(body, object_pairs_hook=keep, parse_constant=refuse)
    check(isinstance(whole, dict) and len(top) == len(whole))
    return whole


def check(condition):
    if not condition:
        raise ValueError("refused")


def expect_bound(whole):
    given = [whole[name] for name in ("max_completion_tokens", "max_tokens") if whole.get(name) is not None]
    for value in given:
        check(type(value) in (int, float) and value == int(value) and -INT64 <= value < INT64)
    return max(int(given[0]), 0) if given else None


def expect(body, usage_on_request):
    """What ``json.loads`` and the rules of the interface say; ValueError for a refusal."""
    whole = load_strictly(body)
    check(isinstance(whole.get("model"), str))
    check(whole.get("stream") is None or isinstance(whole["stream"], bool))
    check(all(isinstance(whole.get(name), str | None) for name in ("service_tier", "previous_response_id")))
    bound = expect_bound(whole)
    rendered = {key: value for key, value in whole.items() if key not in _STRIPPED}
    strip = False
    if not whole.get("stream"):
        rendered.pop("stream_options", None)
    if whole.get("stream") and usage_on_request:
        asked = whole.get("stream_options")
        check(isinstance(asked, dict | None))
        wanted = (asked or {}).get("include_usage")
        check(isinstance(wanted, bool | None))
        strip = wanted is not True
        if strip:
            kept = {key: value for key, value in (asked or {}).items() if key != "continuous_usage_stats"}
            rendered["stream_options"] = {**kept, "include_usage": True}
    return whole["model"], bool(whole.get("stream")), bound, strip, {**OURS, **rendered}


@settings(max_examples=600, deadline=None)
@given(bodies(), st.booleans())
@example(b"{}", True)
@example(b'{"model":"m"}', True)
@example(b'{"model":"m","stream":true,"stream_options":{"include_usage":false,"a":"\\ud83d\\ude00"}}', True)
@example(b'{"model":"a","mod\\u0065l":"b"}', False)
@example(b'{ "model" : "m" , "max_tokens" : 1.0e1 }', False)
@example(b'{"model":"m","max_tokens":9223372036854775807}', False)
@example(b'{"model":"m","max_tokens":9223372036854775808}', False)
@example(b'{"model":"m","max_completion_tokens":5,"max_tokens":9223372036854775808}', False)
@example(b'{"model":"m","stream":false,"stream_options":{"include_usage":true}}', True)
def test_peek_agrees_with_json_loads(body, usage_on_request):
    try:
        model, stream, bound, strip, rendered = expect(body, usage_on_request)
    except ValueError:
        with pytest.raises(PeekError):
            peek(body, usage_on_request, EXTRA)
        return
    found = peek(bytearray(body), usage_on_request, EXTRA)
    assert (found.model, found.stream, found.max_output_tokens, found.strip_usage) == (model, stream, bound, strip)
    twice = []
    sent = json.loads(
        b"".join(found.parts), object_pairs_hook=lambda p: twice.append(len(p) != len(dict(p))) or dict(p)
    )
    assert sent == rendered
    assert not twice[-1]


def test_the_naive_peek_is_seen_to_fail():
    for body in (b'{"model":"m","model":"m"}', b'{"model":"m","x":NaN}'):
        assert json.loads(body)["model"] == "m"
        with pytest.raises(PeekError):
            peek(body, False, b"")


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("spaced", [True, False])
def test_large_bodies_are_passed_by_reference_and_alike(size, spaced):
    for fields in ({"model": "m", "x": "y" * size}, {"x": "y" * size, "model": "m", "priority": 1}):
        body = json.dumps(fields, separators=(", ", ": ") if spaced else (",", ":")).encode()
        fields.pop("priority", None)
        assert json.loads(b"".join(peek(body, False, EXTRA).parts)) == {**OURS, **fields}
        assert json.loads(b"".join(peek(bytearray(body), False, b"").parts)) == fields


def test_an_object_without_members_gets_ours():
    for body, extra, sent in (
        (b"{}", EXTRA, OURS),
        (b" { } ", EXTRA, OURS),
        (b'{"priority":1}', EXTRA, OURS),
        (b"{}", b"", {}),
    ):
        assert json.loads(b"".join(peek(body, False, extra, False).parts)) == sent


def test_large_bodies_with_faults(monkeypatch):
    monkeypatch.setattr(members, "_LARGE", 100)
    monkeypatch.setattr(members, "_MEMBERS_MAX", 10)
    many = b",".join(b'"k%d":1' % i for i in range(40))
    with pytest.raises(PeekError, match="more than 10 members"):
        split_members(b"{" + many + b"}")
    assert len(split_members(b'{"messages":{' + many + b'},"x":{"y":1}}')) == 2
    with pytest.raises(PeekError, match="JSON object"):
        split_members(b"[" + b"1," * 100 + b"1]")
    with pytest.raises(PeekError, match="valid JSON"):
        split_members(b"{" + b"1," * 100 + b"1]")


def test_what_is_too_large_to_be_explained_is_refused_all_the_same(monkeypatch):
    monkeypatch.setattr(members, "_EXPLAINED", 10)
    with pytest.raises(PeekError, match="A key stands more than once") as caught:
        split_members(b'{"model":"m","model":"m"}')
    assert caught.value.param is None
    with pytest.raises(PeekError, match="not valid JSON"):
        split_members(b'{"model":NaN}')


def test_utf8_is_checked_across_slices(monkeypatch):
    monkeypatch.setattr(members, "_SLICE", 5)
    text = "aé😀" * 50
    assert split_members(json.dumps({"x": text}, ensure_ascii=False).encode())
    with pytest.raises(PeekError, match=r"byte 9\)"):
        split_members(b'{"x":"aaa\xffbb"}')
    with pytest.raises(PeekError, match="UTF-8"):
        split_members(b'{"x":"\xe2\x82"}')


def test_keys_of_clients_are_not_collected():
    for i in range(2000):
        split_members(b'{ "key%d": %d}' % (i, i))
        split_members(b'{"' + b"k" * 100 + b'%d" : 1}' % i)
    assert len(members._TOKENS) <= 256
    assert max(map(len, members._TOKENS)) <= 64


LARGE = b"[" + b"[]," * 30_000 + b"[]]"


@pytest.mark.parametrize("name", ["model", "service_tier", "max_tokens", "previous_response_id", "stream_options"])
def test_a_field_that_is_read_here_is_not_decoded_when_it_is_huge(monkeypatch, name):
    value = b'{"x":' + LARGE + b"}" if name == "stream_options" else LARGE
    fields = {"model": b'"m"', "stream": b"true", name: value}
    body = b"{" + b",".join(b'"%b":%b' % (key.encode(), raw) for key, raw in fields.items()) + b"}"
    with pytest.raises(PeekError, match="longer than") as caught:
        peek(body, True, b"")
    assert caught.value.param == name


@pytest.mark.parametrize("space", [b"", b" ", b"\n\t "])
def test_members_are_counted_however_they_are_spaced(space):
    body = b'{"model":"m",' + b",".join(b'"k%d"%b:1234567' % (number, space) for number in range(70_000)) + b"}"
    with pytest.raises(PeekError, match="more than 65536 members"):
        peek(body, True, b"")


def test_text_full_of_colons_is_no_crowd_of_members():
    body = b'{"model":"m","metadata":{"text":"' + b"a: " * 300_000 + b'"}}'
    assert peek(body, True, b"").model == "m"
