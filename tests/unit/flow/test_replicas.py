"""What one gateway makes of the reports of others. How several of them act together: ``tests/property/test_shares``."""

import random
from dataclasses import replace

import pytest

from service.domain.event import (
    DrainBegan,
    FirstTokenSeen,
    PermitEnded,
    ReplicasSeen,
    ReportDue,
    RequestArrived,
    WorkerHealthChanged,
    WorkerJoined,
    WorkerLeft,
    WorkerLoadSeen,
)
from service.domain.load import WorkerLoad
from service.domain.permit import PermitEnding
from service.domain.replica import Certainty, find_place
from service.domain.tier import Tier
from service.flow.config import FlowConfig, SharingConfig
from service.flow.controller import FlowController
from service.flow.shares import score
from tests.support.flow import build_request
from tests.support.replicas import build_report, build_use

CARRIES = 12
TIERS = {
    "gold": Tier("gold", 0, ttft_targets_s=((100_000, 5.0),), tpot_target_s=0.05),
    "standard": Tier("standard", 1),
}


@pytest.fixture
def core():
    """A gateway called "me", in contact for more than a lease, with the worker "a" for itself."""
    config = FlowConfig(requests_per_worker=CARRIES, tiers=TIERS, sharing=SharingConfig(1.0, 4))
    core = FlowController(config, random.Random(1))
    core.handle(WorkerJoined("a"), 0.0)
    core.handle(WorkerHealthChanged("a", True), 0.0)
    for turn in range(8):
        hear(core, 0.2 * turn)
    return core


def hear(core, now, *others):
    core.handle(ReportDue("me"), now)
    report = core.report(now)
    core.handle(ReplicasSeen(report.number, (report, *others)), now)
    return report


def worker_of(core, name="a"):
    return core._state.ledger.workers[name]


def arrive(core, count, now, tier="gold", begin=0):
    for index in range(begin, begin + count):
        core.handle(RequestArrived(build_request(f"r{index}", tier=tier, rank=0, arrived_at=now, ttl_s=60.0)), now)


def other(number=1, name="other", demand=0.0, **use):
    return build_report(name, build_use(claim=use.get("held", 0), **use), demand={0: demand}, number=number)


def test_without_reports_nothing_is_shared():
    core = FlowController(FlowConfig(), random.Random(1))
    assert core.report(0.0) is None
    core.handle(ReplicasSeen(1, (other(),)), 0.0)
    assert core.stats(0.0).replicas is None


def test_alone_it_has_everything(core):
    assert worker_of(core).permits == CARRIES
    stats = core.stats(1.5)
    assert (stats.replicas, stats.alone, stats.workers[0].permits) == (1, False, CARRIES)


def test_another_makes_it_give_up_half_at_once(core):
    hear(core, 1.6, other())
    assert worker_of(core).permits == CARRIES // 2
    assert core.stats(1.6).replicas == 2


def test_a_permit_more_is_taken_only_after_a_report_that_claims_it(core):
    hear(core, 1.6, other(1, demand=50.0))
    arrive(core, 30, 1.7)
    before = worker_of(core).permits
    core.handle(ReplicasSeen(99, (other(2),)), 1.7)  # the answer to no report of its own
    assert worker_of(core).permits == before
    claimed = hear(core, 1.8, other(2, demand=0.0)).workers[0].claim
    assert before < worker_of(core).permits == claimed < CARRIES - 1
    hear(core, 2.0, other(3, demand=0.0))
    assert worker_of(core).permits == CARRIES - 1


def test_who_is_silent_for_a_lease_counts_no_longer(core):
    hear(core, 1.6, other(1, demand=6.0, decoding=2, held=2))
    assert (worker_of(core).foreign, worker_of(core).decoding) == (2, 2)
    for turn in range(1, 8):
        hear(core, 1.6 + 0.2 * turn, other(1, demand=6.0, decoding=2, held=2))  # still in the store, and old
    assert worker_of(core).permits == CARRIES
    assert (worker_of(core).foreign, worker_of(core).decoding) == (0, 0)


def test_what_others_have_there_is_counted_and_is_gone_with_them(core):
    arrive(core, 1, 1.5)
    own = worker_of(core).backlog_tokens
    use = {"held": 3, "decoding": 2, "backlog_tokens": 500, "promises": ((0.05, 1), (0.1, 2))}
    hear(core, 1.6, other(1, **use))
    worker = worker_of(core)
    assert (worker.foreign, worker.decoding, worker.backlog_tokens) == (3, 2, 500 + own)
    assert worker.promises == {0.05: 2, 0.1: 2}
    report = core.report(1.6)
    assert (report.workers[0].held, report.workers[0].decoding, report.workers[0].backlog_tokens) == (1, 0, own)
    assert report.workers[0].promises == ((0.05, 1),)
    hear(core, 1.8, other(2, held=1, decoding=1, promises=((0.05, 1),)))
    assert (worker.foreign, worker.decoding, worker.backlog_tokens) == (1, 1, own)
    assert worker.promises == {0.05: 2}
    core.handle(FirstTokenSeen("r0"), 1.9)
    core.handle(PermitEnded("r0", PermitEnding.SERVED, 20, 100), 1.95)
    hear(core, 2.0, build_report("other", build_use("b"), number=3))
    assert (worker.foreign, worker.decoding, worker.backlog_tokens, worker.promises) == (0, 0, 0, {})


def test_prompts_of_others_are_paid_from_the_slack(core):
    arrive(core, 1, 1.5)
    worker = worker_of(core)
    hear(core, 1.6, other(1, sent_tokens=1000))  # the first word of another: what it sent before is over
    before = worker.slack.read_s(1.8)
    hear(core, 1.8, other(2, sent_tokens=3000))
    paid_s = 2000 * worker.reading.per_kilotoken_s * 1e-3
    assert worker.slack.seconds == pytest.approx(before - paid_s)
    assert worker.prefilled_tokens == 2000
    lower = worker.slack.seconds - 1.0
    hear(core, 1.8001, other(3, sent_tokens=3000, slack_s=lower))
    assert lower < worker.slack.seconds < lower + 1.0


def read(core, now, running, **more):
    load = WorkerLoad(now, running, more.get("waiting", 0), 0.1, generation_tokens=more.get("tokens"))
    core.handle(WorkerLoadSeen("a", load), now)


class TestCapacity:
    def test_several_gateways_learn_the_pace_of_the_whole_batch(self, core):
        """Ten tokens a second for each of eight requests, of which only two are ours."""
        arrive(core, 2, 1.5, "standard")
        for name in ("r0", "r1"):
            core.handle(FirstTokenSeen(name), 1.6)
        hear(core, 1.6, other(1, held=6, decoding=6))
        read(core, 2.0, 8, tokens=0)
        for second in range(1, 6):
            hear(core, 2.0 + second - 0.1, other(1 + second, held=6, decoding=6))
            read(core, 2.0 + second, 8, tokens=80 * second)
        assert worker_of(core).pace.predict_s(8.0) == pytest.approx(0.1)

    def test_a_bound_that_others_met_is_taken_over(self, core):
        read(core, 1.5, 0)
        assert worker_of(core).limit.certainty is Certainty.SEARCHED
        hear(core, 1.6, other(1, limit=9))
        limit = worker_of(core).limit
        assert (limit.limit, limit.certainty) == (9, Certainty.FOUND)

    def test_what_is_searched_grows_by_first_tokens_of_all(self):
        core = FlowController(FlowConfig(), random.Random(1))
        core.handle(ReportDue("me"), 0.0)
        core.handle(WorkerJoined("a"), 0.0)
        core.handle(WorkerHealthChanged("a", True), 0.0)
        read(core, 0.0, 0)
        hear(core, 0.1, other(1, limit=8, certainty=Certainty.SEARCHED, widened=5))
        hear(core, 0.3, other(2, limit=8, certainty=Certainty.SEARCHED, widened=7))
        assert worker_of(core).limit.limit == 10

    def test_our_own_first_tokens_widen_our_share_unless_the_cap_is_near(self):
        for cap, widened in ((1024, 1), (8, 0)):
            config = FlowConfig(requests_per_worker=cap, sharing=SharingConfig(1.0, 1))
            core = FlowController(config, random.Random(1))
            core.handle(ReportDue("me"), 0.0)
            core.handle(WorkerJoined("a"), 0.0)
            core.handle(WorkerHealthChanged("a", True), 0.0)
            read(core, 0.0, 0)
            for turn in range(8):
                hear(core, 0.2 * turn)
            arrive(core, 8, 1.5, "standard")
            core.handle(FirstTokenSeen("r0"), 1.51)
            assert worker_of(core).widened == widened
            assert worker_of(core).share == 8 + widened


class TestCutOff:
    def test_the_worker_itself_tells_what_others_have_there(self, core):
        hear(core, 1.6, other(1, demand=6.0, held=2, decoding=1))
        arrive(core, 2, 1.7, "standard")
        for turn in range(1, 8):
            core.handle(ReportDue("me"), 1.6 + 0.2 * turn)
        assert core.stats(3.0).alone
        read(core, 3.0, 5, waiting=1)
        assert (worker_of(core).foreign, worker_of(core).decoding) == (4, 4)
        read(core, 3.2, 2)
        assert (worker_of(core).foreign, worker_of(core).decoding) == (0, 0)
        read(core, 3.4, None)
        hear(core, 3.6, other(2, held=1, decoding=1))
        read(core, 3.7, 9)
        assert worker_of(core).foreign == 1

    def test_a_larger_share_comes_down_to_an_equal_one_within_the_lease(self, core):
        hear(core, 1.6, other(1))
        hear(core, 1.8, other(2))
        arrive(core, 20, 1.8)
        for turn in range(4):
            hear(core, 2.0 + 0.2 * turn, other(3 + turn))
        at_contact = worker_of(core).share
        assert at_contact > CARRIES // 2
        seen = []
        for turn in range(1, 6):
            core.handle(ReportDue("me"), 2.6 + 0.2 * turn)
            seen.append(worker_of(core).share)
        assert seen[0] == seen[1] == at_contact
        assert seen[-1] == CARRIES // 2
        assert seen == sorted(seen, reverse=True)

    def test_a_worker_that_came_meanwhile_is_not_touched(self, core):
        for turn in range(1, 8):
            core.handle(ReportDue("me"), 1.4 + 0.2 * turn)
        core.handle(WorkerJoined("b"), 3.0)
        core.handle(WorkerHealthChanged("b", True), 3.0)
        core.handle(ReportDue("me"), 3.2)
        assert worker_of(core, "b").share == 0


def test_a_new_worker_waits_for_the_next_report(core):
    core.handle(WorkerJoined("b"), 1.5)
    core.handle(WorkerHealthChanged("b", True), 1.5)
    assert worker_of(core, "b").permits == 0
    hear(core, 1.6)
    assert worker_of(core, "b").permits == CARRIES


def test_a_process_that_took_the_place_of_another_is_the_same_place_to_others(core):
    arrive(core, 1, 1.5)
    core.handle(WorkerLeft("a"), 1.5)
    core.handle(WorkerJoined("a~2"), 1.5)
    core.handle(WorkerHealthChanged("a~2", True), 1.5)
    report = hear(core, 1.6, other(1, held=2, decoding=2))
    assert [use.worker_id for use in report.workers] == ["a"]
    assert worker_of(core, "a~2").foreign == 2
    assert find_place("10.0.0.1:8000~12") == "10.0.0.1:8000"


def test_one_that_leaves_and_has_nobody_waiting_asks_for_nothing(core):
    core.handle(DrainBegan(), 1.5)
    assert core.report(1.5).workers[0].limit == 0


def test_who_waits_is_part_of_the_demand(core):
    arrive(core, CARRIES + 3, 1.5)
    assert dict(core.report(1.5).demand)[0] >= 3.0


def test_another_life_of_the_gateway_begins_anew(core):
    core.handle(ReportDue("me again"), 1.6)
    assert core.report(1.6).replica_id == "me again"
    assert core.report(1.6).number == 1


def test_a_worker_that_nobody_can_use_is_shared_by_nobody(core):
    core.handle(WorkerHealthChanged("a", False), 1.5)
    hear(core, 1.6, other(1, limit=0))
    assert worker_of(core).share == 0


class TestAffinity:
    """A conversation comes back to its worker through whichever gateway."""

    PROMPT = (4096 << 32 | 1, 8192 << 32 | 2)
    NEXT = (*PROMPT, 12_288 << 32 | 3)

    @pytest.fixture
    def pool(self):
        config = FlowConfig(requests_per_worker=CARRIES, sharing=SharingConfig(1.0, 1))
        core = FlowController(config, random.Random(1))
        core.handle(ReportDue("me"), 0.0)
        for name in "abcd":
            core.handle(WorkerJoined(name), 0.0)
            core.handle(WorkerHealthChanged(name, True), 0.0)
        for turn in range(8):
            hear(core, 0.2 * turn)
        return core

    @staticmethod
    def send(core, name, now, prefix=(), session=None):
        request = build_request(name, prompt_bytes=12_288, arrived_at=now, ttl_s=60.0)
        request.prefix, request.session = prefix, session
        (command,) = core.handle(RequestArrived(request), now)
        return command.worker_id

    def test_a_prompt_is_told_of_in_a_few_reports(self, pool):
        worker = self.send(pool, "r", 1.5, self.PROMPT)
        for turn in range(3):
            report = hear(pool, 1.6 + 0.2 * turn)
            (told,) = report.read
            assert told[0] == self.PROMPT[-1]
            assert report.workers[told[1]].worker_id == worker
        hear(pool, 2.2)
        assert hear(pool, 2.4).read == ()

    def test_what_others_sent_is_found_again(self, pool):
        uses = tuple(build_use(name) for name in ("gone", *"dcba"))
        for place, worker in ((1, "d"), (4, "a")):
            mark = 8192 << 32 | place
            told = build_report("other", *uses, number=place)
            hear(pool, 1.6 + place / 10, replace(told, read=((mark, place), (mark, 0), (mark, 99))))
            prefix = (mark, 12_288 << 32 | 77 + place)
            assert self.send(pool, f"r{place}", 1.65 + place / 10, prefix) == worker

    def test_where_nothing_is_remembered_all_gateways_choose_the_same(self, pool):
        other = FlowController(FlowConfig(sharing=SharingConfig(1.0, 1)), random.Random(7))
        other.handle(ReportDue("other"), 0.0)
        for name in "dacb":
            other.handle(WorkerJoined(name), 0.0)
            other.handle(WorkerHealthChanged(name, True), 0.0)
        for turn in range(8):
            hear(other, 0.2 * turn)
        chosen = set()
        for name in "klmnopqr":
            one, two = (self.send(core, name, 1.5, session=name) for core in (pool, other))
            assert one == two
            chosen.add(one)
            for core in (pool, other):
                core.handle(PermitEnded(name, PermitEnding.SERVED, 20), 1.5)
        assert len(chosen) > 1

    def test_a_prompt_that_nobody_knows_too(self, pool):
        assert self.send(pool, "r", 1.5, (4096 << 32 | 9,)) == max(
            "abcd", key=lambda name: score(str(4096 << 32 | 9), name)
        )
