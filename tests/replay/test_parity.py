"""Both shells drive the same core to the same commands, on histories made here and on one that is committed."""

import random

import pytest

from loadtests.sim.driver import VirtualDriver, replay
from service.domain.command import Dispatch, Enqueue, Refuse, Revoke
from service.domain.event import Event, Woken
from service.domain.outcome import Outcome
from service.flow.band import BEST_EFFORT, EXCESS
from service.flow.config import Reconfigured
from service.flow.controller import FlowController
from service.runtime.driver import Driver
from service.runtime.journal import decode_journal, encode_header, encode_record, load_journal
from tests.replay.record import JOURNAL, build_lines
from tests.support.loop import FakeLoop
from tests.support.world import World


class Log:
    """Observer that keeps everything, with the types of the commands beside them."""

    def __init__(self):
        self.records = []

    def observe(self, now, event, commands):
        self.records.append(typed((now, event, commands)))


def typed(record):
    """A record that is equal only to one of equal types, to the last bit of every float."""
    now, event, commands = record
    return float(now).hex(), type(event), event, [(type(command), repr(command)) for command in commands]


def drive_asyncio(journal):
    """The journal's events, without its alarms, through the gateway's shell: alarms must come by themselves."""
    loop, log = FakeLoop(), Log()
    controller = FlowController(journal.header.config, random.Random(journal.header.seed))
    driver = Driver(controller, loop, loop, [log])
    for at, event, _ in journal.records:
        if not isinstance(event, Woken):
            loop.run(at)
            driver.submit(event)
    loop.run(journal.records[-1][0] + 100.0)
    return log.records


def drive_virtual(journal):
    """The same through the simulator's shell."""
    log = Log()
    controller = FlowController(journal.header.config, random.Random(journal.header.seed))
    driver = VirtualDriver(controller, observers=[log])
    for at, event, _ in journal.records:
        if not isinstance(event, Woken):
            driver.schedule(at, event)
    driver.run()
    return log.records


@pytest.fixture(scope="module")
def committed():
    return load_journal(JOURNAL)


@pytest.mark.parametrize("seed", range(8))
def test_a_history_recorded_by_one_shell_replays_in_the_other(seed):
    journal = World(seed).run(length_s=10.0, arrivals_per_s=10.0)
    lines = [encode_header(journal.header), *map(encode_record, journal.records)]
    again = decode_journal(lines)
    assert [typed(record) for record in again.records] == [typed(record) for record in journal.records]
    assert [typed(record) for record in replay(again)] == [typed(record) for record in journal.records]


@pytest.mark.parametrize("seed", range(12))
def test_both_shells_ring_the_same_alarms(seed):
    journal = World(seed).run(length_s=10.0, arrivals_per_s=10.0)
    expected = [typed(record) for record in journal.records]
    assert drive_virtual(journal) == expected
    assert drive_asyncio(journal) == expected


class TestCommittedJournal:
    def test_it_holds_every_kind_of_event_and_command(self, committed):
        assert {type(event) for _, event, _ in committed.records} == {*Event.__args__, Reconfigured}
        kinds = {type(command) for _, _, commands in committed.records for command in commands}
        assert kinds == {Enqueue, Dispatch, Refuse, Revoke}
        assert len(committed.records) > 300

    def test_it_holds_every_band_and_its_endings(self, committed):
        commands = [command for _, _, commands in committed.records for command in commands]
        grounds = [command.grounds for command in commands if not isinstance(command, Revoke) and command.grounds]
        assert {0, 1, EXCESS, BEST_EFFORT} == {one.band for one in grounds}
        outcomes = {command.outcome for command in commands if isinstance(command, Refuse | Revoke)}
        assert outcomes >= {Outcome.EXPIRED, Outcome.SHED, Outcome.REVOKED, Outcome.STREAM_BROKEN, Outcome.QUEUE_FULL}

    def test_replayed_event_by_event(self, committed):
        assert [typed(record) for record in replay(committed)] == [typed(record) for record in committed.records]

    def test_through_the_shell_of_the_simulator(self, committed):
        assert drive_virtual(committed) == [typed(record) for record in committed.records]

    def test_through_the_shell_of_the_gateway(self, committed):
        assert drive_asyncio(committed) == [typed(record) for record in committed.records]

    def test_the_script_makes_it(self):
        assert build_lines() == JOURNAL.read_bytes()


def test_another_seed_orders_otherwise(committed):
    """The comparison would see a difference: chance is part of what is replayed."""
    header = type(committed.header)(committed.header.seed + 1, committed.header.config)
    other = type(committed)(header, committed.records)
    first_difference = next(
        (mine, yours) for mine, yours in zip(committed.records, replay(other), strict=True) if mine[2] != yours[2]
    )
    assert first_difference
