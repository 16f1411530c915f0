"""One request that waits."""

from tests.support.flow import build_entry


def test_choosy_is_who_cannot_go_everywhere():
    assert not build_entry("one").choosy
    assert build_entry("pinned", pinned_to="a").choosy
    assert build_entry("returned", failed_on="a").choosy


def test_it_stands_by_its_promise_or_by_its_patience():
    assert build_entry("r", sequence=3, ttl_s=9.0).order == (9.0, 3)
    assert build_entry("r", sequence=3, due_at=2.0).order == (2.0, 3)


def test_what_comes_back_waits_as_another_with_all_its_patience():
    entry = build_entry("r", due_at=2.0, ttl_s=9.0)
    entry.gone = True
    again = entry.renew(7, 2, frozenset("a"), 1)
    assert (again.order, again.give_up_at, again.gone) == ((2.0, 7), 9.0, False)
    assert (again.attempt, again.failed_on, again.revoked) == (2, {"a"}, 1)
