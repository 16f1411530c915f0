"""I16: a tenant that sends a hundred times as much changes nothing in what another is admitted within its contract."""

import random

import pytest

from service.domain.command import Enqueue, Refuse
from service.domain.contract import Allowance, Measure
from service.domain.event import FirstTokenSeen, PermitEnded, RequestArrived
from service.domain.permit import PermitEnding
from service.flow.config import FlowConfig
from tests.support.flow import build_controller, build_request

CONTRACTS = {name: Allowance(2.0, 4.0, Measure.REQUESTS) for name in ("quiet", "noisy")}


def live(per_turn, contracts, seed):
    """The quiet tenant's requests that were refused while the noisy one sent ``per_turn`` a turn."""
    config = FlowConfig(requests_per_worker=2, queued_requests_max=40, contracts=contracts)
    controller, chance = build_controller("ab", config), random.Random(seed)
    running, refused, now = [], [], 0.0
    for turn in range(60):
        now += 0.5
        arrivals = [("noisy", f"n{turn}-{number}") for number in range(per_turn)] + [("quiet", f"q{turn}")]
        chance.shuffle(arrivals)
        for tenant, name in arrivals:
            request = build_request(name, arrived_at=now, tenant=tenant, ttl_s=20.0)
            commands = controller.handle(RequestArrived(request), now)
            refused += [one.request_id for one in commands if isinstance(one, Refuse) and one.request_id[0] == "q"]
            running += [one.request_id for one in commands if not isinstance(one, Refuse | Enqueue)]
        for name in running[:2]:
            running.remove(name)
            controller.handle(FirstTokenSeen(name), now)
            commands = controller.handle(PermitEnded(name, PermitEnding.SERVED, 50, 100), now + 0.1)
            running += [one.request_id for one in commands if not isinstance(one, Refuse)]
    return refused


@pytest.mark.parametrize("seed", range(5))
def test_a_noisy_neighbour_changes_nothing(seed):
    assert live(1, CONTRACTS, seed) == live(100, CONTRACTS, seed) == []


def test_without_contracts_it_would():
    assert live(100, {}, 1) != []
