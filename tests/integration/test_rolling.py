"""D17 and D18 end to end: gateways and workers are restarted under load behind a real Envoy, and nobody notices."""

import os

import pytest

from loadtests.live.peer_install import InstallError
from loadtests.live.peers import PEERS
from loadtests.live.rolling import QUICK, QUICK_SHAPE, find_broken_promises, format_steps, format_tiers, measure

pytestmark = pytest.mark.integration


@pytest.mark.timeout(300)
def test_d17_d18_a_rolling_restart_is_not_noticed(capfd):
    try:
        PEERS["envoy"].install()
    except InstallError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Envoy: {error}")
    rollout = measure(QUICK, QUICK_SHAPE, 4.0, 120.0, 25400)
    assert [step.pod for step in rollout.steps] == ["gateway-0", "gateway-1", "worker-0", "worker-1"]
    assert all(step.gone_s - step.began_s < QUICK_SHAPE.grace_s for step in rollout.steps)
    assert find_broken_promises(rollout, 4) == [], (
        format_tiers(rollout) + format_steps(rollout) + capfd.readouterr().out
    )
