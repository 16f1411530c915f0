"""Sizes are guessed from bytes, and learned from answers."""

import pytest

from service.domain.estimate import Estimate
from service.flow import estimator as module
from service.flow.estimator import Estimator
from tests.support.flow import build_request


def test_before_anything_was_learned_bytes_tell():
    assert Estimator().estimate(build_request("r", prompt_bytes=320)) == Estimate(101, 211)
    assert Estimator().estimate(build_request("r", prompt_bytes=0)).prompt_tokens == 1


def test_a_small_bound_of_the_client_is_believed_and_a_large_one_is_not():
    assert Estimator().estimate(build_request("r", max_output_tokens=7)).output_tokens == 7
    assert Estimator().estimate(build_request("r", max_output_tokens=100_000)).output_tokens == 211
    assert Estimator().estimate(build_request("r", max_output_tokens=0)).output_tokens == 1


def test_a_tenants_own_habits_are_learned():
    estimator = Estimator()
    for _ in range(400):
        estimator.observe(build_request("r", prompt_bytes=1000, tenant="dense"), 500, 20)
    learned = estimator.estimate(build_request("r", prompt_bytes=1000, tenant="dense"))
    assert learned.prompt_tokens == pytest.approx(500, rel=0.05)
    assert learned.output_tokens == pytest.approx(20, abs=2)


def test_one_answer_of_a_tenant_counts_for_little():
    estimator = Estimator()
    estimator.observe(build_request("r", tenant="new"), 100, 10_000)
    assert 211 < estimator.estimate(build_request("r", tenant="new")).output_tokens < 2000


def test_an_answer_that_came_to_its_bound_would_have_been_longer():
    estimator = Estimator()
    for turn in range(60):
        bound = 50 if turn % 2 else None
        estimator.observe(build_request("r", max_output_tokens=bound), 100, bound or 400)
    assert estimator.estimate(build_request("r")).output_tokens > 350
    assert estimator.estimate(build_request("r", max_output_tokens=50)).output_tokens >= 49


def test_one_that_was_aborted_too():
    estimator = Estimator()
    for _ in range(50):
        estimator.observe(build_request("r"), 100, 400)
        estimator.observe_cut(build_request("r"), 50)
    assert estimator.estimate(build_request("r")).output_tokens > 350


def test_what_nobody_counted_teaches_nothing():
    estimator = Estimator()
    estimator.observe(build_request("r"), None, None)
    assert estimator.estimate(build_request("r")) == Estimate(101, 211)


def test_tenants_not_seen_for_longest_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "_TENANTS_MAX", 2)
    estimator = Estimator()
    for tenant in ("a", "b", "a", "c"):
        estimator.observe(build_request("r", tenant=tenant), 100, 10)
    assert set(estimator._tenants) == {"a", "c"}


def test_what_is_reserved_is_what_most_answers_stay_within():
    estimator = Estimator()
    request = build_request("r")
    for length in range(1, 101):
        estimator.observe(request, 100, length)
    mean, long = estimator.estimate(request).output_tokens, estimator.foresee(request, 0.9).output_tokens
    assert mean < long < 2.5 * mean
    assert estimator.foresee(build_request("r", max_output_tokens=5), 0.9).output_tokens == 5
    assert estimator.foresee(build_request("r", tenant="stranger"), 0.9).output_tokens > mean
    assert estimator.foresee(request, 0.5).output_tokens < long
