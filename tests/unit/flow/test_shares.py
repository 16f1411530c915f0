"""The division of workers between gateways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.replica import Certainty
from service.flow.shares import bound_overshoot, divide, divide_equally, find_capacities, make_room, weigh
from tests.support.replicas import build_report, build_use

DEMANDS = st.dictionaries(st.sampled_from([0, 1, 32, 64]), st.floats(0.0, 300.0), max_size=4)
NAMES = st.lists(st.sampled_from("abcdefghijklmnop"), min_size=1, max_size=16, unique=True)


@st.composite
def reports(draw):
    """What up to sixteen gateways say of up to four workers; together they hold no more than a worker carries."""
    names = draw(NAMES)
    workers = draw(st.lists(st.sampled_from("wxyz"), min_size=1, max_size=4, unique=True))
    limits = {worker: draw(st.integers(1, 60)) for worker in workers}
    left = dict(limits)
    said = []
    for name in names:
        uses = []
        for worker in workers:
            usable = draw(st.sampled_from([True, True, True, False]))
            held = draw(st.integers(0, left[worker]))
            left[worker] -= held
            uses.append(build_use(worker, limits[worker] if usable else 0, held=held))
        said.append(build_report(name, *uses, demand=draw(DEMANDS)))
    return said


@given(reports())
def test_what_is_held_and_what_may_be_taken_stay_within_what_a_worker_carries(said):
    capacities = find_capacities(said)
    parts = divide(said, capacities)
    for worker, capacity in capacities.items():
        held = {r.replica_id: u.held for r in said for u in r.workers if u.worker_id == worker}
        total = sum(max(held[name], part.get(worker, 0)) for name, part in parts.items())
        assert total <= capacity.permits


@given(reports(), st.randoms(use_true_random=False))
def test_everybody_comes_to_the_same_whatever_the_order(said, chance):
    other = list(said)
    chance.shuffle(other)
    assert divide(said, find_capacities(said)) == divide(other, find_capacities(other))


@given(reports())
def test_nothing_is_left_over(said):
    """Work conservation: where nobody holds more than its part, all that a worker carries is given to somebody."""
    capacities = find_capacities(said)
    parts = divide(said, capacities)
    for worker, capacity in capacities.items():
        held = {r.replica_id: u.held for r in said for u in r.workers if u.worker_id == worker}
        given_out = sum(max(held[name], part.get(worker, 0)) for name, part in parts.items())
        assert given_out == capacity.permits or not any(worker in part for part in parts.values())


@given(st.lists(DEMANDS, min_size=1, max_size=16), st.floats(1.0, 500.0))
def test_weights_add_up_and_dearer_demand_comes_first(demands, permits):
    said = [build_report(f"g{index}", demand=demand) for index, demand in enumerate(demands)]
    weights = weigh(said, permits)
    assert sum(weights.values()) == pytest.approx(permits)
    dearest = sum(max(demand.get(0, 0.0), 1.0) for demand in demands)
    if dearest <= permits:
        for index, demand in enumerate(demands):
            assert weights[f"g{index}"] >= demand.get(0, 0.0) - 1e-6


def test_in_contract_before_excess_before_idle():
    said = [build_report("a", demand={0: 8.0}), build_report("b", demand={32: 100.0})]
    assert divide(said, find_capacities(said)) == {"a": {"a": 8}, "b": {"a": 4}}


def test_what_nobody_asks_for_is_divided_equally():
    said = [build_report("a", demand={0: 4.0}), build_report("b"), build_report("c")]
    assert divide(said, find_capacities(said)) == {"a": {"a": 6}, "b": {"a": 3}, "c": {"a": 3}}


def test_of_excess_each_gets_by_what_it_is_offered():
    said = [build_report("a", demand={32: 30.0}), build_report("b", demand={32: 90.0})]
    assert divide(said, find_capacities(said)) == {"a": {"a": 3}, "b": {"a": 9}}


def test_nobody_needs_no_division():
    assert weigh([], 10.0) == {}
    assert divide([], {}) == {}


def test_a_worker_that_nobody_can_use_is_divided_between_nobody():
    said = [build_report("a", build_use(limit=0, held=1))]
    assert find_capacities(said) == {}


def test_rounding_is_made_good_on_the_next_worker():
    """Three gateways, eight workers of four permits: each gets ten or eleven of 32."""
    uses = [build_use(f"w{index}", 4) for index in range(8)]
    said = [build_report(name, *uses) for name in "abc"]
    parts = divide(said, find_capacities(said))
    assert sorted(sum(part.values()) for part in parts.values()) == [10, 11, 11]


def test_a_permit_that_could_go_to_either_stays_where_it_is_used():
    for user in "ab":
        said = [build_report(name, build_use(limit=5, held=3 if name == user else 2)) for name in "ab"]
        assert divide(said, find_capacities(said))[user] == {"a": 3}


def test_what_two_are_owed_is_not_given_twice():
    """Each of "b" and "c" is owed half a permit from a worker of its own when they come to the one that they share."""
    said = [
        build_report("a", build_use("u", 1, held=1)),
        build_report("b", build_use("u", 1), build_use("w", 1)),
        build_report("c", build_use("v", 1), build_use("w", 1)),
        build_report("d", build_use("v", 1, held=1)),
    ]
    parts = divide(said, find_capacities(said))
    assert (parts["a"], parts["d"]) == ({"u": 1}, {"v": 1})
    assert parts["b"]["w"] + parts["c"]["w"] == 1


def test_more_gateways_than_permits():
    said = [build_report(name, *[build_use(f"w{index}", 1) for index in range(4)]) for name in "abcdefgh"]
    parts = divide(said, find_capacities(said))
    assert sum(sum(part.values()) for part in parts.values()) == 4
    assert max(sum(part.values()) for part in parts.values()) == 1


def test_those_who_lack_permits_wait_for_those_who_hold_too_many():
    assert make_room(10, {"a": 4, "b": 3, "c": 3}, {"a": 8, "b": 1}) == {"a": 4, "b": 1, "c": 1}
    assert make_room(10, {"a": 4, "b": 3, "c": 3}, {"a": 10}) == {"a": 4, "b": 0, "c": 0}


class TestCapacity:
    def test_bounds_that_were_met_are_believed_more_than_guesses(self):
        said = [
            build_report("a", build_use(limit=9)),
            build_report("b", build_use(limit=11)),
            build_report("c", build_use(limit=64, certainty=Certainty.SEARCHED)),
            build_report("d", build_use(limit=1024, certainty=Certainty.NOTHING)),
        ]
        assert find_capacities(said)["a"].permits == 9
        assert find_capacities(said[2:])["a"].permits == 64
        assert find_capacities(said[3:])["a"].permits == 1024

    def test_of_guesses_the_largest(self):
        said = [
            build_report("a", build_use(limit=8, certainty=Certainty.SEARCHED)),
            build_report("b", build_use(limit=16, certainty=Certainty.SEARCHED)),
        ]
        assert find_capacities(said)["a"].permits == 16

    def test_one_that_is_far_off_does_not_decide(self):
        said = [build_report(name, build_use(limit=limit)) for name, limit in (("a", 10), ("b", 11), ("c", 500))]
        assert find_capacities(said)["a"].permits == 11


@given(st.integers(0, 300), NAMES)
def test_equal_parts_add_up(permits, names):
    parts = [divide_equally(permits, "w", names, name) for name in names]
    assert sum(parts) == permits
    assert max(parts) - min(parts) <= 1


@pytest.mark.parametrize(
    ("replicas", "cut_off", "bound"), [(4, 0, 0), (4, 4, 0), (4, 1, 3), (4, 3, 9), (16, 15, 15), (1, 1, 0)]
)
def test_the_bound_of_the_overshoot(replicas, cut_off, bound):
    assert bound_overshoot(12, replicas, cut_off) == bound
