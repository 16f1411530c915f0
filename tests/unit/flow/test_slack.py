"""How long prompts may be read before somebody's tokens are late."""

from math import inf

import pytest

from service.flow.slack import SLACK_MAX_S, Slack


@pytest.fixture
def slack():
    """A token each 20 ms, promised each 50 ms: 1.125 s of slack per second."""
    slack = Slack()
    slack.learn(0.02, 0.05)
    return slack


def test_it_is_gained_by_decoding_and_lost_to_prompts(slack):
    slack.seconds = 0.0
    assert slack.read_s(1.0) == pytest.approx(1.125)
    slack.spend(0.5, None, 1.0)
    assert slack.seconds == pytest.approx(0.625)
    assert slack.read_s(60.0) == SLACK_MAX_S


def test_nothing_is_gained_while_a_prompt_is_read(slack):
    slack.seconds = 0.0
    slack.spend(0.5, None, 0.0)
    assert slack.read_s(0.5) == pytest.approx(-0.5)
    assert slack.enough_at(0.625, 0.5) == pytest.approx(1.5)
    assert slack.read_s(1.5) == pytest.approx(0.625)


def test_it_is_foreseen_when_there_is_enough_while_a_prompt_is_read(slack):
    slack.seconds = 0.0
    slack.spend(0.5, None, 0.0)
    assert slack.enough_at(0.0, 0.1) == pytest.approx(0.5 + 0.5 / 1.125)


def test_who_comes_has_what_its_own_answer_leaves(slack):
    own_s = slack.foresee_s(10.0, 0.05)
    assert own_s == pytest.approx(0.3)
    slack.spend(0.1, own_s, 0.0)
    assert slack.seconds == pytest.approx(0.3)
    slack.spend(0.1, 1.0, 0.0)
    assert slack.seconds == pytest.approx(0.2)  # the one before has less
    assert slack.foresee_s(10.0, 0.01) == 0.0


def test_who_begins_later_than_foreseen_has_gained_nothing(slack):
    mark_s = slack.spend(0.1, 0.3, 0.0)
    slack.spend(0.2, None, 0.1)
    assert slack.read_s(2.0) > 1.0
    slack.begin(mark_s, 2.0)
    assert slack.seconds == pytest.approx(0.1)
    slack.begin(inf, 2.0)
    assert slack.seconds == pytest.approx(0.1)


def test_the_tightest_promise_counts_at_once(slack):
    slack.tighten(0.1)
    assert slack.rate == pytest.approx(1.125)
    slack.tighten(0.03)
    assert slack.rate == pytest.approx(0.275)
    slack.tighten(0.001)
    assert slack.rate == 0.05
    slack.learn(0.001, 0.05)
    assert slack.rate == 2.0
    slack.learn(None, None)
    assert slack.rate == 2.0


def test_nobody_there_means_no_debt(slack):
    slack.spend(9.0, 0.0, 0.0)
    slack.clear(0.5, 1.0)
    assert (slack.seconds, slack.busy_until) == (SLACK_MAX_S, 1.5)
    slack.tighten(0.03)
    assert slack.rate == pytest.approx(0.275)
