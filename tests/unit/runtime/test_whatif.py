"""A recorded history under the same numbers is the same, and under others it is played to its end."""

from dataclasses import replace

import pytest

from service.domain.command import Dispatch, Revoke
from service.domain.event import AttemptFailed, FailureCause, FirstTokenSeen, PermitEnded, RequestArrived
from service.domain.outcome import Outcome
from service.domain.permit import PermitEnding
from service.domain.tier import Tier
from service.flow.config import FlowConfig, Reconfigured, SheddingConfig
from service.runtime.fates import Fates
from service.runtime.journal import Journal, JournalHeader
from service.runtime.replay import find_difference, replay
from service.runtime.whatif import compare
from tests.support.flow import build_request
from tests.support.world import World

SEEDS = range(8)


def record(seed):
    return World(seed).run(length_s=15.0, arrivals_per_s=10.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_replayed_to_the_same_commands(seed):
    assert find_difference(record(seed)) is None


def test_the_first_difference_is_named():
    journal = record(1)
    number = next(index for index, one in enumerate(journal.records) if one[2] and index > 50)
    at, event, commands = journal.records[number]
    changed = (*journal.records[:number], (at, event, commands[1:]), *journal.records[number + 1 :])
    found = find_difference(Journal(journal.header, changed))
    assert found is not None
    assert (found.number, found.at, found.event) == (number + 1, at, event)
    assert list(found.replayed) == list(commands)


@pytest.mark.parametrize("seed", SEEDS)
def test_under_the_same_numbers_nothing_changes(seed):
    journal = record(seed)
    found = compare(journal, lambda config: config)
    assert found.changed() == []
    assert found.recorded == found.other


CHANGES = {
    "fewer permits": lambda config: replace(config, requests_per_worker=1),
    "more permits": lambda config: replace(config, requests_per_worker=64),
    "no queue": lambda config: replace(config, queued_requests_max=1),
    "no retries": lambda config: replace(config, retry=replace(config.retry, attempts_max=1)),
    "brownout": lambda config: replace(
        config,
        shedding=SheddingConfig(brownout_forced=3),
        tiers={name: replace(tier, best_effort=True) for name, tier in config.tiers.items()},
    ),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CHANGES)
def test_any_history_is_played_to_its_end(seed, name):
    journal = record(seed)
    found = compare(journal, CHANGES[name])
    assert set(found.other) == set(found.recorded)
    again = compare(journal, CHANGES[name])
    assert again.other == found.other, "it is the same each time"


def test_a_shorter_queue_refuses_more():
    found = compare(record(2), lambda config: replace(config, queued_requests_max=1))
    count = [sum(fate.outcome == "queue_full" for fate in fates.values()) for fates in (found.recorded, found.other)]
    assert count[1] > count[0]
    assert all(before.outcome != after.outcome for before, after in found.changed())


def build_journal(*records, config=None):
    """A journal of one healthy worker and these events, with what the core orders."""
    from service.domain.event import WorkerHealthChanged, WorkerJoined

    config = config or FlowConfig()
    events = [(0.0, WorkerJoined("a"), ()), (0.0, WorkerHealthChanged("a", True), ())]
    header = JournalHeader(1, config)
    played = Journal(header, (*events, *((at, event, ()) for at, event in records)))
    return Journal(header, tuple(replay(played)))


def arrival(name, at):
    return at, RequestArrived(build_request(name, arrived_at=at))


def test_a_request_that_was_refused_takes_as_long_as_its_tier():
    tight = FlowConfig(requests_per_worker=1, queued_requests_max=1)
    journal = build_journal(
        arrival("r", 1.0), arrival("q", 1.1), arrival("s", 1.2), (2.0, FirstTokenSeen("r")),
        (3.0, PermitEnded("r", PermitEnding.SERVED)), (5.0, PermitEnded("q", PermitEnding.SERVED)), arrival("z", 30.0),
        config=tight,
    )  # fmt: skip
    recorded = Fates()
    for one in journal.records:
        recorded.observe(*one)
    assert recorded.by_id["s"].outcome == "queue_full"
    found = compare(journal, lambda config: replace(config, queued_requests_max=10))
    assert [(one.request.request_id, two.outcome) for one, two in found.changed()] == [("s", "served")]
    wider = compare(journal, lambda config: replace(config, requests_per_worker=8))
    assert wider.other["q"].wait_s == 0.0


def test_a_failure_belongs_to_the_worker():
    journal = build_journal(
        arrival("r", 1.0), (1.5, AttemptFailed("r", FailureCause.FAULTY)), arrival("z", 9.0),
        config=FlowConfig(requests_per_worker=1),
    )  # fmt: skip
    found = compare(journal, lambda config: config)
    assert found.other["r"].outcome == "worker_failed"


@pytest.mark.parametrize("first_seen", [True, False])
def test_what_is_not_taken_back_here_is_served(first_seen):
    """A history in which somebody was taken back, played by a core that sees no reason to."""
    tokens = [(1.6, FirstTokenSeen("r"))] if first_seen else []
    end = PermitEnded("r", PermitEnding.DROPPED)
    journal = build_journal(
        arrival("q", 0.1), (0.2, FirstTokenSeen("q")), (1.0, PermitEnded("q", PermitEnding.SERVED, 20, 100)),
        arrival("r", 1.5), *tokens, arrival("dear", 2.0), (2.1, end), arrival("z", 30.0),
    )  # fmt: skip
    revoked = Revoke("r", Outcome.REVOKED)
    records = tuple(
        (at, event, [*commands, revoked] if at == 2.0 else commands) for at, event, commands in journal.records
    )
    found = compare(Journal(journal.header, records), lambda config: config)
    assert found.recorded["r"].outcome == "revoked"
    assert found.other["r"].outcome == "served"


def test_a_tier_of_another_rank():
    journal = build_journal(arrival("r", 1.0), config=FlowConfig(tiers={"standard": Tier("standard", 1)}))
    found = compare(journal, lambda config: replace(config, tiers={"standard": Tier("standard", 4)}))
    assert found.other["r"].request.rank == 4


def test_a_later_config_is_changed_too():
    other = FlowConfig(requests_per_worker=8)
    journal = build_journal((0.5, Reconfigured(other)), arrival("r", 1.0), arrival("s", 1.1))
    assert sum(isinstance(c, Dispatch) for _, _, commands in journal.records for c in commands) == 2
    found = compare(journal, lambda config: replace(config, requests_per_worker=1))
    assert found.other["s"].wait_s is None


def test_a_journal_with_gaps_cannot_be_compared():
    with pytest.raises(ValueError, match="2 events are missing"):
        compare(Journal(JournalHeader(1, FlowConfig()), (), 2), lambda config: config)


def test_long_journals_tell_how_far_they_are(monkeypatch):
    monkeypatch.setattr("service.runtime.replay.TELL_EVERY", 100)
    monkeypatch.setattr("service.runtime.whatif.TELL_EVERY", 100)
    told = []
    journal = record(3)
    find_difference(journal, told.append)
    compare(journal, lambda config: config, told.append)
    assert told[0] == 100
    assert told.count(100) == 2
