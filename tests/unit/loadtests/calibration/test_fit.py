"""The fit finds what an engine costs from nothing but the times of its answers."""

import math
from dataclasses import replace

import pytest

from loadtests.calibration.fit import (
    FIELDS,
    Sample,
    compute_loss,
    compute_residuals,
    estimate_noise,
    fit,
    read_parameters,
    shift,
    write_parameters,
)
from loadtests.calibration.linear import build_decode_rows, build_first_rows, count_cached, solve
from loadtests.calibration.plan import MIXES, Sweep, plan_held_out, plan_sweep
from loadtests.calibration.replay import Question, Times
from loadtests.calibration.verdict import judge, judge_run
from service.emulator.profiles import CPU_SMALL
from tests.unit.loadtests.calibration.world import TRUE, measure

SWEEP = Sweep(batches=(1, 4, 16), prompts=(48, 600), single_prompts=(48, 1200, 2400))
RUNS = plan_sweep(SWEEP, TRUE.max_model_len)


@pytest.fixture(scope="module")
def found():
    seen = [measure(run) for run in RUNS]
    template = replace(CPU_SMALL, name="calibrated", frontend=replace(CPU_SMALL.frontend))
    rounds = []
    return fit(template, [Sample(one.questions, one.times) for one in seen], lambda: rounds.append(1)), rounds


def test_it_recovers_the_parameters_that_made_the_sweep(found):
    result, rounds = found
    said, true = result.profile, TRUE
    assert said.cost.base_s == pytest.approx(true.cost.base_s, rel=0.05)
    assert said.cost.per_token_s == pytest.approx(true.cost.per_token_s, rel=0.4)
    for batch in (4, 16):
        assert cost_of_step(said, batch) == pytest.approx(cost_of_step(true, batch), rel=0.06)
    assert said.frontend.latency_s + said.frontend.per_request_s == pytest.approx(0.008, rel=0.2)
    for prompt in (500, 1000, 2000):  # what a prompt costs in a step; its two terms alone are told apart less well
        assert cost_of_prompt(said, prompt) == pytest.approx(cost_of_prompt(true, prompt), rel=0.15)
    assert rounds


def test_it_explains_the_sweep_as_well_as_the_truth_does(found):
    result = found[0]
    samples = [shift(Sample(one.questions, one.times), TRUE.cost.base_s) for one in map(measure, RUNS)]
    truth = write_parameters(CPU_SMALL, read_parameters(TRUE))
    assert result.loss < 1.1 * compute_loss(compute_residuals(truth, samples))
    assert result.loss < 0.8 * result.loss_before


def cost_of_step(profile, batch):
    return profile.cost.base_s + batch * profile.cost.per_token_s


def cost_of_prompt(profile, tokens):
    cost = profile.cost
    own = cost.per_prefill_token_s * tokens + cost.per_prefill_context_s * tokens * tokens
    return own + profile.frontend.per_prompt_token_s * tokens


def test_what_it_found_predicts_runs_it_has_not_seen(found):
    runs = [plan_held_out(mix, 3.0, 12.0, 77, TRUE.max_model_len) for mix in MIXES]
    verdict = judge([judge_run(found[0].profile, measure(run), 0.5, 0.0) for run in runs], [], 0.15)
    assert verdict.is_honest
    assert verdict.e2e.median < 0.05
    assert verdict.ttft.median < 0.15


def test_the_limits_of_the_engine_are_the_templates(found):
    profile = found[0].profile
    assert (profile.name, profile.kv_blocks, profile.max_num_seqs) == ("calibrated", CPU_SMALL.kv_blocks, 16)


def test_parameters_go_in_and_out_in_one_order():
    values = [0.1 * index for index in range(1, len(FIELDS) + 1)]
    assert read_parameters(write_parameters(CPU_SMALL, values)) == values


def test_perfect_parameters_leave_nothing_to_explain():
    still = replace(TRUE, cost=replace(TRUE.cost, noise_cv=0.0))
    seen = measure(plan_sweep(SWEEP, 4096)[-1], still)
    sample = replace(shift(Sample(seen.questions, seen.times), 0.0))
    assert compute_loss(compute_residuals(still, [sample])) == pytest.approx(0.0, abs=1e-12)


def test_one_hiccup_weighs_less_than_by_its_square():
    assert compute_loss([0.1, -0.1]) == pytest.approx(0.01)
    assert compute_loss([10.0]) < 10.0


def test_noise_is_read_from_streams_that_were_alone():
    even = [[0.01 * index for index in range(200)]]
    assert estimate_noise(even) == pytest.approx(0.0, abs=1e-6)
    rough = [[0.01 * index + 0.002 * math.sin(index * 1.7) for index in range(200)]]
    assert 0.0 < estimate_noise(rough) < 0.3
    assert estimate_noise([[0.0, 0.1]]) == 0.0


def test_least_squares_takes_columns_out_rather_than_go_below_zero():
    rows = [[1.0, x, -x] for x in (0.0, 1.0, 2.0, 3.0)]
    targets = [1.0 + 2.0 * x for x in (0.0, 1.0, 2.0, 3.0)]
    assert solve(rows, targets, [1.0] * 4) == pytest.approx([1.0, 2.0, 0.0], abs=1e-5)
    assert solve([[1.0], [1.0]], [-1.0, -2.0], [1.0, 1.0]) == [0.0]
    assert solve([], [], []) == []


def test_weights_decide_between_rows_that_disagree():
    assert solve([[1.0], [1.0]], [1.0, 3.0], [3.0, 1.0]) == pytest.approx([1.5])


def test_a_prompt_finds_whole_blocks_of_those_before_it_and_computes_its_last_token():
    asked = [Question(0.0, 300, 1, (1, 2)), Question(1.0, 256, 1, (1, 2)), Question(2.0, 300, 1, (1, 9))]
    assert count_cached(asked, 128) == [0, 128, 128]


def test_rows_say_who_decoded_beside_whom_and_who_came_to_an_idle_engine():
    asked = [Question(0.0, 100, 11), Question(0.2, 100, 11), Question(9.0, 3000, 4)]
    times = [Times(0.0, 0.1, 1.1, 11), Times(0.2, 0.6, 1.6, 11), Times(9.0, 9.5, 9.8, 4)]
    decode = build_decode_rows(asked, times)
    assert [row[0][1] for row in decode] == [pytest.approx(1.5), pytest.approx(1.5)]
    assert [row[1] for row in decode] == [pytest.approx(0.1), pytest.approx(0.1)]
    first = build_first_rows(asked, times, 128, 2048)
    assert [row[1] for row in first] == [pytest.approx(0.1), pytest.approx(0.5)]
    assert first[1][0] == [1.0, 3000, 3000, 2048 * 2048 + 952 * 3000, 2]
