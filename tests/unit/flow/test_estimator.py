"""Sizes are guessed from bytes."""

from service.domain.estimate import Estimate
from service.flow.estimator import DEFAULT_OUTPUT_TOKENS, estimate_request
from tests.support.flow import build_request


def test_prompt_follows_the_bytes():
    assert estimate_request(build_request("r", prompt_bytes=320)) == Estimate(100, DEFAULT_OUTPUT_TOKENS)


def test_a_small_bound_of_the_client_is_believed():
    assert estimate_request(build_request("r", max_output_tokens=7)).output_tokens == 7


def test_a_large_bound_is_not_taken_for_the_length():
    assert estimate_request(build_request("r", max_output_tokens=100_000)).output_tokens == DEFAULT_OUTPUT_TOKENS


def test_an_empty_body_costs_nothing_to_read():
    assert estimate_request(build_request("r", prompt_bytes=0)).prompt_tokens == 0
