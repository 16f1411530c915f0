"""Outcomes: each says its phase, its fault and whether a retry can help."""

import pytest

from service.domain.outcome import Fault, Outcome, Phase


def test_labels_are_unique_and_follow_the_names():
    assert [outcome.label for outcome in Outcome] == [outcome.name.lower() for outcome in Outcome]


def test_only_completion_is_nobodys_fault():
    assert [outcome for outcome in Outcome if outcome.fault is Fault.NONE] == [Outcome.COMPLETED]


@pytest.mark.parametrize("outcome", [o for o in Outcome if o.fault in (Fault.CAPACITY, Fault.US)])
def test_what_is_not_the_clients_fault_can_be_tried_again(outcome):
    assert outcome.retryable


def test_every_phase_can_end_a_request():
    assert {outcome.phase for outcome in Outcome} == set(Phase)
