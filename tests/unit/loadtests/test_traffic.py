"""Arrivals, shapes and targets of offered traffic."""

import json
import random
from itertools import pairwise

import pytest

from loadtests.live.open_loop import Plan, build_request
from loadtests.live.traffic import (
    MIXED,
    MIXES,
    UNIFORM,
    Mix,
    Schedule,
    Targets,
    build_prompt,
    compute_arrivals,
    dump_mix,
    load_mix,
)

SCHEDULE = Schedule(rate_rps=50.0, seconds=40.0, warm_up_s=5.0, cool_down_s=5.0, seed=7)


def test_the_same_seed_gives_the_same_arrivals_and_another_seed_others():
    first = compute_arrivals(MIXED, SCHEDULE)
    assert compute_arrivals(MIXED, SCHEDULE) == first
    assert compute_arrivals(MIXED, Schedule(50.0, 40.0, 5.0, 5.0, seed=8)) != first


def test_arrivals_ascend_and_only_those_in_the_window_count():
    arrivals = compute_arrivals(UNIFORM, SCHEDULE)
    moments = [arrival.at_s for arrival in arrivals]
    assert moments == sorted(moments)
    assert -5.0 < moments[0] < -4.0
    assert 44.0 < moments[-1] < 45.0
    assert all(arrival.counted == (0.0 <= arrival.at_s < 40.0) for arrival in arrivals)


@pytest.mark.parametrize("seed", range(5))
def test_rate_and_shares_are_exactly_the_ones_asked_for(seed):
    counted = [a for a in compute_arrivals(UNIFORM, Schedule(20.0, 10.0, 3.0, 3.0, seed)) if a.counted]
    assert (len(counted), sum(arrival.shape == 0 for arrival in counted)) == (200, 60)


def test_parts_of_no_length_have_no_arrivals():
    assert all(arrival.counted for arrival in compute_arrivals(UNIFORM, Schedule(20.0, 10.0)))


@pytest.mark.parametrize("cv", [1.0, 2.0])
def test_gaps_are_as_bursty_as_asked_for(cv):
    mix = Mix(UNIFORM.name, 1, UNIFORM.tiers, UNIFORM.shapes, burst_cv=cv)
    moments = [arrival.at_s for arrival in compute_arrivals(mix, Schedule(100.0, 200.0))]
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation / mean == pytest.approx(cv, rel=0.1)


def test_first_edge_that_fits_gives_the_promise():
    targets = Targets("hi", ((1024, 1.0), (4096, 2.0)), 0.05)
    assert [targets.choose_ttft_s(tokens) for tokens in (1, 1024, 1025, 4096, 9999)] == [1.0, 1.0, 2.0, 2.0, 2.0]


@pytest.mark.parametrize("mix", MIXES.values(), ids=lambda mix: mix.name)
def test_shares_of_a_mix_add_up_and_it_survives_json(mix):
    assert sum(shape.share for shape in mix.shapes) == pytest.approx(1.0)
    assert sum(mix.compute_share(targets.tier) for targets in mix.tiers) == pytest.approx(1.0)
    assert load_mix(json.loads(json.dumps(dump_mix(mix)))) == mix


def test_a_mix_of_one_tier_has_only_its_requests():
    assert {shape.tier for shape in MIXED.restrict("lo").shapes} == {"lo"}


def test_prompts_have_about_the_size_asked_for_and_share_no_beginning():
    chance = random.Random(1)
    prompts = [build_prompt(2500, chance) for _ in range(2)]
    assert all(len(prompt) == pytest.approx(4 * 2500, rel=0.01) for prompt in prompts)
    assert prompts[0][:16] != prompts[1][:16]


def test_a_plan_survives_json():
    plan = Plan((1, 2), MIXED, SCHEDULE, headers={"hi": {"x-a": "b"}}, bodies={"lo": {"priority": 10}})
    assert Plan.load(plan.dump()) == plan


def test_a_request_says_its_tier_as_the_plan_has_it_and_asks_for_usage():
    plan = Plan((1,), UNIFORM, SCHEDULE, headers={"hi": {"x-tier": "up"}}, bodies={"lo": {"priority": 10}})
    head, _, body = build_request(plan, 0, random.Random(1)).partition(b"\r\n\r\n")
    assert b"x-tier: up" in head
    assert f"content-length: {len(body)}".encode() in head
    hi, lo = (json.loads(build_request(plan, i, random.Random(1)).partition(b"\r\n\r\n")[2]) for i in (0, 1))
    assert (hi["stream"], hi["stream_options"], hi["max_tokens"]) == (True, {"include_usage": True}, 64)
    assert ("priority" in hi, lo["priority"]) == (False, 10)
