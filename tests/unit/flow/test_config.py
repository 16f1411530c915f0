"""The defaults stand in a sane relation."""

from service.flow.config import FlowConfig, Reconfigured


def test_defaults_are_ordered():
    config = FlowConfig()
    assert 0 < config.breaker.open_s <= config.breaker.open_max_s
    assert 0 < config.breaker.busy_rest_s <= config.breaker.busy_rest_max_s
    assert config.retry.attempts_max >= 1
    assert 0 < config.retry.budget_ratio < 1


def test_reconfigured_carries_the_config():
    assert Reconfigured(FlowConfig()) == Reconfigured(FlowConfig())
