"""Whatever happens in whatever order: one settlement, one permit back, nothing said out of turn, no call left open."""

import pytest

from service.domain.errors import InvariantError
from service.domain.event import PermitEnded, RequestAbandoned
from service.domain.outcome import Outcome
from service.domain.permit import PermitEnding
from service.runtime.ending import Ending, Stage
from service.runtime.journey import Journey
from service.runtime.relay import Relay
from tests.support.walk import BrokenError, Walk

SEEDS = range(150)


@pytest.mark.parametrize("faults", [0.0, 0.02])
def test_walks(faults):
    outcomes = set()
    for seed in SEEDS:
        walk = Walk(seed, faults)
        walk.run()
        outcomes |= {one.outcome.label for one in walk.settled}
    assert len(outcomes) >= 14  # else the walks do not go far


def forget_permit(self, ending):
    self.stage = Stage.ENDED


def return_twice(self, ending):
    self.stage = Stage.ENDED
    for _ in range(2):
        self._road.driver.submit(PermitEnded(self.request.request_id, ending, None))


def release_anything(self):
    if self._held and not self._started:
        self._start(b"")


def forget_the_queue(self, ending):
    if self.stage is Stage.RUNNING:
        self._give_back(ending)


def settle_twice(self, outcome):
    self.settlement.outcome = None
    real_end(self, outcome)
    self.settlement.outcome = None
    real_end(self, outcome)


def gone_is_queued(self):
    self._road.driver.submit(RequestAbandoned(self.request.request_id))
    self._end(Outcome.CLIENT_GONE)


def speak_after_the_end(self, outcome, ending):
    self._abort_call()
    self._tell_end(outcome)
    self._client.write(b"and another thing")
    self._give_back(ending)
    self._end(outcome)


def begin_again(self, headers, length, data):
    self._commit(200, headers, None if self.stream else length)
    self._client.write(data)


def complete_but_silent(self, outcome, whole):
    self._give_back(PermitEnding.SERVED)
    self._end(outcome)


def sweep_whatever(self, now):
    if self.stage is Stage.ENDED:
        self.stage = Stage.QUEUED
    real_sweep(self, now)


real_end = Ending._end
real_sweep = Journey.on_sweep
MUTANTS = {
    "permit kept": (Ending, "_give_back", forget_permit),
    "permit returned twice": (Ending, "_give_back", return_twice),
    "held bytes of a dead attempt": (Relay, "release", release_anything),
    "queue not told": (Ending, "_give_up_place", forget_the_queue),
    "fault ends nothing": (Ending, "on_fault", lambda self: None),
    "settled twice": (Ending, "_end", settle_twice),
    "gone while running": (Journey, "on_client_gone", gone_is_queued),
    "gone unheard": (Journey, "on_client_gone", lambda self: None),
    "call not aborted": (Ending, "_abort_call", lambda self: None),
    "written after the end": (Ending, "_break", speak_after_the_end),
    "begun twice": (Journey, "on_answer", begin_again),
    "sweep after the end": (Journey, "on_sweep", sweep_whatever),
    "never finished": (Journey, "on_complete", complete_but_silent),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_walks_find(mutant, monkeypatch):
    owner, name, naive = MUTANTS[mutant]
    monkeypatch.setattr(owner, name, naive)
    for seed in SEEDS:
        try:
            Walk(seed, 0.02).run()
        except (BrokenError, InvariantError):
            return
    pytest.fail("no walk noticed")
