"""Which cache holds which beginning, for how long, and how far that is believed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.flow import prefix as module
from service.flow.prefix import CacheTrust, PrefixTable, SessionTable


def mark(bytes_, hash_=7):
    return bytes_ << 32 | hash_


def test_what_nobody_has_read_is_known_nowhere():
    assert PrefixTable().find([mark(1024)]) == {}


def test_the_longest_beginning_that_a_cache_holds_counts():
    table = PrefixTable()
    table.remember([mark(1024), mark(2048)], 1)
    table.remember([mark(1024)], 2)
    assert table.find([mark(1024), mark(2048), mark(4096)]) == {1: 2048, 2: 1024}


def test_another_hash_is_another_beginning():
    table = PrefixTable()
    table.remember([mark(1024, 1)], 1)
    assert table.find([mark(1024, 2)]) == {}


def test_the_four_caches_that_read_it_last_are_remembered():
    table = PrefixTable()
    for cache in (1, 2, 3, 4, 5, 2, 2):
        table.remember([mark(1024)], cache)
    assert set(table.find([mark(1024)])) == {2, 3, 4, 5}


def test_what_was_not_asked_for_longest_is_forgotten_and_long_beginnings_before_short_ones(monkeypatch):
    monkeypatch.setattr(module, "MARKS_MAX", 3)
    table = PrefixTable()
    table.remember([mark(1024), mark(2048)], 1)
    table.remember([mark(1024), mark(3000), mark(4096)], 1)
    assert table.find([mark(1024), mark(2048)]) == {1: 1024}


@given(st.lists(st.tuples(st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True), st.integers(1, 9))))
def test_a_table_never_says_what_was_not_sent_there(sends):
    table = PrefixTable()
    sent = {}
    for sizes, cache in sends:
        prefix = [mark(size) for size in sorted(sizes)]
        table.remember(prefix, cache)
        sent.setdefault(cache, set()).update(prefix)
        assert table.find(prefix)[cache] == prefix[-1] >> 32  # the latest is always known
    everything = [mark(size) for size in range(1, 7)]
    for cache, known in table.find(everything).items():
        assert mark(known) in sent[cache]


def test_a_session_is_at_home_where_it_was_served_last(monkeypatch):
    monkeypatch.setattr(module, "SESSIONS_MAX", 2)
    sessions = SessionTable()
    assert sessions.find("s") is None
    for session, cache in (("s", 1), ("t", 1), ("s", 2), ("u", 3)):
        sessions.remember(session, cache)
    assert [sessions.find(session) for session in "stu"] == [2, None, 3]


def test_half_is_believed_at_first_then_what_was_seen():
    trust = CacheTrust()
    assert trust.ratio == 0.5
    trust.observe(0.5, 0.45)
    assert trust.ratio == pytest.approx(0.9)
    for _ in range(50):
        trust.observe(0.5, 0.0)
    assert trust.ratio < 0.02
    for _ in range(50):
        trust.observe(0.01, 1.0)
    assert trust.ratio == pytest.approx(1.5, abs=0.02)
