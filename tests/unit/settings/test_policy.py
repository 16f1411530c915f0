"""Another policy is laid over a recorded config, or refused with all its faults."""

import pytest

from service.domain.tier import Tier
from service.flow.config import FlowConfig
from service.settings.fault import SettingsRefusedError
from service.settings.policy import load_policy

RECORDED = FlowConfig(
    tiers={
        "priority": Tier("priority", 0, availability=0.99, attainment=0.9, ttft_targets_s=((4000, 1.0),)),
        "flex": Tier("flex", 2, best_effort=True),
    }
)


def lay(tmp_path, text):
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return load_policy(path, RECORDED)(RECORDED)


def test_an_empty_file_changes_nothing(tmp_path):
    assert lay(tmp_path, "") == RECORDED


def test_what_is_given_is_changed_and_nothing_else(tmp_path):
    changed = lay(
        tmp_path,
        "limits: {queued_requests_max: 7, retry: {attempts_max: 1}, breaker: {open_s: 2.5}}\n"
        "tiers: {priority: {ttft: {1000: 0.5, 4000: 2.0}, tpot_s: 0.05}, flex: {rank: 5, best_effort: false}}\n"
        "brownout: 2\n",
    )
    assert changed.queued_requests_max == 7
    assert changed.retry.attempts_max == 1
    assert changed.retry.budget_ratio == RECORDED.retry.budget_ratio
    assert changed.breaker.open_s == 2.5
    assert changed.shedding.brownout_forced == 2
    assert changed.shedding.floor_ratio == RECORDED.shedding.floor_ratio
    priority, flex = changed.tiers["priority"], changed.tiers["flex"]
    assert (priority.ttft_targets_s, priority.tpot_target_s) == (((1000, 0.5), (4000, 2.0)), 0.05)
    assert (priority.rank, priority.availability) == (0, 0.99)
    assert (flex.rank, flex.best_effort) == (5, False)
    assert changed.queued_tokens_max == RECORDED.queued_tokens_max


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("limits: {queue_ttl_s: 1.0}", "limits.queue_ttl_s"),
        ("model: x", "model"),
        ("tiers: {gold: {rank: 1}}", "tiers.gold"),
        ("limits: {queued_requests_max: many}", "limits.queued_requests_max"),
        ("brownout: 4", "brownout"),
    ],
)
def test_faults_are_named(tmp_path, text, path):
    with pytest.raises(SettingsRefusedError) as refused:
        lay(tmp_path, text)
    (fault,) = refused.value.faults
    assert fault.path == path
    assert fault.line == 1


def test_a_key_that_stands_twice(tmp_path):
    with pytest.raises(SettingsRefusedError, match="stands twice"):
        lay(tmp_path, "brownout: 1\nbrownout: 2\n")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SettingsRefusedError, match="no such file"):
        load_policy(tmp_path / "none", RECORDED)
