"""The flow core keeps its promises through random histories, and the harness finds a fault when there is one."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.machine import FlowMachine
from tests.property.mutants import MUTANTS

SOUND = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
HUNT = settings(
    max_examples=6000,  # it stops at the first fault; the rare ones need some thousands
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)


def test_the_controller_keeps_its_promises():
    run_state_machine_as_test(FlowMachine, settings=SOUND)


@pytest.mark.timeout(900)  # the rarest needs some thousand histories, and a tracer makes each three times as long
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_harness_finds_the_fault(mutant):
    machine = type("MutantMachine", (FlowMachine,), {"build": mutant})
    with pytest.raises(AssertionError, match=MUTANTS[mutant]):
        run_state_machine_as_test(machine, settings=HUNT)
