"""Who goes where, and who must wait."""

import random

import pytest

from service.domain.event import FailureCause
from service.domain.load import WorkerLoad
from service.flow.band import BEST_EFFORT, EXCESS
from service.flow.breaker import observe_failure
from service.flow.config import FlowConfig, SheddingConfig
from service.flow.dispatch import choose_worker, find_place, fits, has_permit, send
from service.flow.retry import RetryBudget
from service.flow.state import FlowState
from service.flow.turns import _asks_less, choose_floor, pump
from tests.support.flow import build_entry

count = iter(range(1, 1_000_000))


def build_state(names="a", **how):
    state = FlowState(FlowConfig(**how), random.Random(1), RetryBudget(1.0))
    for name in names:
        state.ledger.join(name)
        state.ledger.worker(name).healthy = True
    state.ledger.sort_out(state.config.requests_per_worker)
    return state


def occupy(state, name, requests, decoding=True, **how):
    """Let ``requests`` run there."""
    worker = state.ledger.worker(name)
    for _ in range(requests):
        entry = build_entry(f"busy{next(count)}", **how)
        state.ledger.grant(entry, worker, entry.estimate.prompt_tokens, 0.1, 0.0)
        if decoding:
            state.ledger.start_decoding(state.ledger.running[entry.request.request_id], 0.0)
    return worker


def wait(state, name, **how):
    entry = build_entry(name, sequence=next(count), **how)
    state.room.add(entry)
    return entry


def count_at_home(state, name):
    return sum(queue.homes.count(name) for _, queue in state.room.all_bands())


def sent(commands):
    return [command.request_id for command in commands]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda worker: setattr(worker, "healthy", False),
        lambda worker: setattr(worker, "draining", True),
        lambda worker: setattr(worker, "listed", False),
        lambda worker: setattr(worker, "permits", 0),
        lambda worker: setattr(worker.breaker, "busy_until", 5.0),
    ],
    ids=["sick", "draining", "left", "full", "resting"],
)
def test_no_permit(spoil):
    state = build_state()
    worker = state.ledger.worker("a")
    assert has_permit(state, worker, 0.0)
    spoil(worker)
    assert not has_permit(state, worker, 0.0)
    assert fits(state, build_entry("r"), worker, 0.0) is None


def test_the_operators_cap_bounds_what_was_found():
    state = build_state(requests_per_worker=2)
    assert not has_permit(state, occupy(state, "a", 2), 0.0)


def test_nothing_beyond_contracts_on_the_word_of_yesterday():
    """I17"""
    state = build_state()
    worker = state.ledger.worker("a")
    worker.load = WorkerLoad(0.0)
    assert fits(state, build_entry("b", band=BEST_EFFORT), worker, 3.0) is not None
    assert fits(state, build_entry("b", band=BEST_EFFORT), worker, 3.1) is None
    assert fits(state, build_entry("r"), worker, 3.1) is not None


class TestBacklog:
    def test_behind_a_long_prompt_nobody_stands_for_long(self):
        state = build_state()
        worker = occupy(state, "a", 1, decoding=False, tokens=30_000)  # 1.5 s at the prior
        assert fits(state, build_entry("r"), worker, 0.0) is None
        worker.backlog_tokens = 10_000
        assert fits(state, build_entry("r"), worker, 0.0) == pytest.approx(0.02 + 10.1 * 0.05)
        assert fits(state, build_entry("r", due_at=1.0), worker, 0.0) is None  # no more than a quarter of its promise

    def test_a_promise_that_would_be_late_waits_for_another_place(self):
        state = build_state()
        worker = occupy(state, "a", 1, decoding=False, tokens=1000)
        assert fits(state, build_entry("r", due_at=1.0), worker, 0.5) is not None
        assert fits(state, build_entry("r", due_at=1.0), worker, 0.95) is None

    def test_eight_first_tokens_make_a_workers_own_pace(self):
        state = build_state()
        worker = state.ledger.worker("a")
        for _ in range(8):
            worker.prefill.observe(100, 0.5)
        assert fits(state, build_entry("r"), worker, 0.0) == pytest.approx(0.5, rel=0.2)


def decode_promised(state):
    """One request that was promised a pace has begun, on a worker that has shown how fast it reads."""
    worker = occupy(state, "a", 1, tpot_s=0.05)
    worker.prefill.samples = 8
    worker.slack.busy_until = 0.0
    return worker


class TestSlack:
    def test_prompts_wait_until_those_who_decode_have_had_their_turn(self):
        state = build_state()
        worker = decode_promised(state)
        worker.slack.seconds = -0.3
        assert fits(state, build_entry("r"), worker, 0.0) is None
        assert state.alarms.next_at() == pytest.approx((0.3 + 0.003) / worker.slack.rate)
        assert fits(state, build_entry("r"), worker, 0.14) is None
        assert fits(state, build_entry("r"), worker, 0.16) is not None

    def test_a_long_prompt_needs_more(self):
        state = build_state()
        worker = decode_promised(state)
        worker.slack.seconds = 0.1
        assert fits(state, build_entry("r", tokens=10_000), worker, 0.0) is None
        assert fits(state, build_entry("s", tokens=1_000), worker, 0.0) is not None

    def test_the_longest_does_not_wait_for_ever(self):
        state = build_state()
        worker = decode_promised(state)
        assert fits(state, build_entry("r", tokens=1_000_000), worker, 60.0) is not None

    def test_a_pressing_promise_does_not_wait(self):
        state = build_state()
        worker = decode_promised(state)
        worker.slack.seconds = -100.0
        assert fits(state, build_entry("r", due_at=4.0), worker, 0.0) is None
        assert state.alarms.next_at() == pytest.approx(2.001)
        assert fits(state, build_entry("r", due_at=4.0), worker, 2.001) is not None
        assert fits(state, build_entry("b", band=EXCESS, due_at=4.0), worker, 2.002) is None

    def test_before_it_has_shown_how_fast_it_reads_nothing_is_held_back(self):
        state = build_state()
        worker = occupy(state, "a", 1, tpot_s=0.05)
        worker.slack.seconds = -100.0
        assert fits(state, build_entry("r"), worker, 0.0) is not None

    def test_who_was_promised_nothing_holds_nobody_up(self):
        state = build_state()
        worker = occupy(state, "a", 1)
        worker.prefill.samples, worker.slack.seconds = 8, -100.0
        assert fits(state, build_entry("r"), worker, 0.0) is not None


class TestPace:
    def test_tokens_come_in_time_for_all(self):
        state = build_state()
        worker = occupy(state, "a", 4, tpot_s=0.03)
        worker.pace.observe(4.0, 0.02)  # five would take 22.5 ms each
        assert fits(state, build_entry("r"), worker, 0.0) is not None
        assert fits(state, build_entry("r", tpot_s=0.025), worker, 0.0) is None
        assert fits(state, build_entry("b", band=EXCESS), worker, 0.0) is None  # a lower ceiling

    def test_an_idle_worker_does_what_it_can(self):
        state = build_state()
        state.ledger.worker("a").pace.observe(1.0, 1.0)
        assert fits(state, build_entry("r", tpot_s=0.01), state.ledger.worker("a"), 0.0) is not None

    def test_of_an_unknown_pace_nothing_is_held_back(self):
        state = build_state()
        assert fits(state, build_entry("r", tpot_s=0.01), occupy(state, "a", 1), 0.0) is not None


class TestChoice:
    def test_the_soonest_first_token(self):
        state = build_state("abc")
        for name in "ac":
            occupy(state, name, 1, decoding=False, tokens=2000)
        assert choose_worker(state, build_entry("r"), 0.0)[0].worker_id == "b"

    def test_among_equals_the_one_with_most_room(self):
        state = build_state("ab")
        occupy(state, "a", 2)
        occupy(state, "b", 1)
        assert choose_worker(state, build_entry("r", tokens=1), 0.0)[0].worker_id == "b"

    def test_never_where_it_failed(self):
        state = build_state("ab")
        assert choose_worker(state, build_entry("r", failed_on="a"), 0.0)[0].worker_id == "b"
        assert choose_worker(state, build_entry("r", failed_on="ab"), 0.0) is None

    def test_a_long_prompt_keeps_away_from_those_who_decode(self):
        state = build_state("ab")
        occupy(state, "a", 6)
        occupy(state, "b", 1, decoding=False, tokens=100)
        state.ledger.worker("b").promises.clear()
        assert choose_worker(state, build_entry("r", tokens=10_000), 0.0)[0].worker_id == "b"

    def test_promises_gather(self):
        state = build_state("ab")
        occupy(state, "a", 1, tpot_s=0.02)
        occupy(state, "b", 1, tpot_s=0.1)
        assert choose_worker(state, build_entry("r", tpot_s=0.02), 0.0)[0].worker_id == "a"
        assert choose_worker(state, build_entry("r", tpot_s=0.1), 0.0)[0].worker_id == "b"

    def test_of_many_some_are_looked_at_and_all_if_those_are_full(self):
        names = [f"w{number}" for number in range(40)]
        state = build_state(names, requests_per_worker=1)
        for name in names[:-1]:
            occupy(state, name, 1)
        for _ in range(20):
            assert choose_worker(state, build_entry("r"), 0.0)[0].worker_id == "w39"

    def test_a_hint_is_the_only_one_looked_at(self):
        state = build_state("ab", requests_per_worker=1)
        worker = occupy(state, "a", 1)
        assert find_place(state, build_entry("r"), worker, 0.0) is None
        assert find_place(state, build_entry("r"), None, 0.0)[0].worker_id == "b"
        assert find_place(state, build_entry("r", failed_on="b"), state.ledger.worker("b"), 0.0) is None

    def test_the_pinned_go_to_their_worker(self):
        state = build_state("ab")
        assert find_place(state, build_entry("r", pinned_to="b"), None, 0.0)[0].worker_id == "b"
        assert find_place(state, build_entry("r", pinned_to="z"), None, 0.0) is None


class TestPump:
    def test_dearer_bands_first_and_lines_before_all(self):
        state = build_state("ab")
        wait(state, "batch", band=BEST_EFFORT)
        wait(state, "silver", band=1)
        wait(state, "gold", band=0)
        wait(state, "pinned", pinned_to="b")
        assert sent(pump(state, None, 0.0)) == ["pinned", "gold", "silver", "batch"]

    def test_a_band_whose_first_has_no_place_holds_up_the_cheaper(self):
        state = build_state(requests_per_worker=2)
        worker = occupy(state, "a", 1, decoding=False, tokens=30_000)
        wait(state, "gold", band=0, due_at=1.0)
        wait(state, "batch", band=BEST_EFFORT)
        assert pump(state, worker, 0.0) == []

    def test_a_promise_that_presses_passes_one_that_has_time(self):
        state = build_state()
        worker = decode_promised(state)
        worker.slack.seconds = -100.0
        wait(state, "gold", band=0, due_at=9.0)
        wait(state, "silver", band=1, due_at=4.0)
        wait(state, "excess", band=EXCESS, due_at=4.0)
        assert pump(state, worker, 1.0) == []
        assert state.alarms.next_at() == pytest.approx(2.001)
        assert sent(pump(state, worker, 2.001)) == ["silver"]
        wait(state, "bronze", band=2)
        assert pump(state, worker, 3.0) == []
        worker.healthy = False
        wait(state, "copper", band=2, due_at=5.0)
        assert pump(state, worker, 4.0) == []
        worker.healthy = True
        assert sent(pump(state, worker, 4.6)) == ["gold", "copper"]

    def test_nobody_passes_a_promise_that_presses(self):
        state = build_state()
        worker = decode_promised(state)
        worker.permits = 1
        wait(state, "gold", band=0, due_at=2.0)
        wait(state, "silver", band=1, due_at=2.0)
        assert pump(state, worker, 1.5) == []

    def test_lines_stop_at_the_first_without_a_place(self):
        state = build_state("ab", requests_per_worker=1)
        worker = occupy(state, "a", 1)
        wait(state, "pinned", pinned_to="a")
        wait(state, "returned", failed_on="a")
        assert sent(pump(state, worker, 0.0)) == []
        assert sent(pump(state, state.ledger.worker("b"), 0.0)) == ["returned"]

    def test_a_probe_is_one(self):
        state = build_state()
        worker = state.ledger.worker("a")
        observe_failure(worker.breaker, FailureCause.UNREACHABLE, None, 0.0, state.config.breaker)
        wait(state, "one")
        wait(state, "two")
        assert sent(pump(state, None, 1.0)) == ["one"]

    def test_grounds_are_given(self):
        state = build_state()
        entry = wait(state, "r", due_at=4.0)
        grounds = send(state, entry, state.ledger.worker("a"), 0.3, 0.0).grounds
        assert (grounds.band, grounds.due_at, grounds.ttft_s) == (1, 4.0, 0.3)
        assert (grounds.held, grounds.limit, grounds.queued_requests) == (0, 1024, 0)


class TestFloor:
    def fill(self, state, guaranteed=100):
        for number in range(guaranteed):
            wait(state, f"g{number}", band=0)
        for number in range(10):
            wait(state, f"b{number}", band=BEST_EFFORT)

    def test_a_share_of_the_work_goes_beyond_contracts(self):
        state = build_state(shedding=SheddingConfig(floor_ratio=0.125))
        state.ledger.worker("a").permits = 33
        self.fill(state)
        order = sent(pump(state, None, 0.0))
        assert sum(name.startswith("b") for name in order) == 3
        assert order[8] == "b0"

    def test_the_operator_may_suspend_it(self):
        state = build_state(shedding=SheddingConfig(floor_ratio=0.1, brownout_forced=2))
        state.ledger.worker("a").permits = 33
        self.fill(state)
        assert all(name.startswith("g") for name in sent(pump(state, None, 0.0)))

    def test_one_without_a_place_keeps_its_turn_and_holds_up_nobody(self):
        state = build_state()
        state.ledger.worker("a").load = WorkerLoad(-10.0)  # stale: not for best effort
        state.floor_credit_s = 50.0
        self.fill(state, guaranteed=3)
        assert sent(pump(state, None, 0.0)) == ["g0", "g1", "g2"]
        assert state.floor_credit_s <= 1.1

    def test_it_is_for_those_who_waited_beside_promises(self):
        state = build_state()
        assert choose_floor(state, 0.0) is None
        state.floor_credit_s = 1.0
        assert choose_floor(state, 0.0) is None
        beyond = wait(state, "b", band=BEST_EFFORT, work_s=1.0)
        assert choose_floor(state, 0.0) is None  # nobody dearer: it is first anyway
        wait(state, "g", band=0)
        assert choose_floor(state, 0.0) is beyond
        state.floor_credit_s = 0.9
        assert choose_floor(state, 0.0) is None
        state.room.remove("b")
        state.floor_credit_s = 1.0
        assert choose_floor(state, 0.0) is None

    def test_what_is_not_waited_for_is_not_saved_up(self):
        state = build_state()
        state.floor_credit_s = 5.0
        wait(state, "g", band=0)
        pump(state, None, 0.0)
        assert state.floor_credit_s == 0.0


def mark(bytes_):
    return bytes_ << 32 | 7


def build_known(name, tokens=10_000, **how):
    """Somebody with a prompt of so many tokens at four bytes each, whose first nine tenths may be known."""
    entry = build_entry(name, tokens=tokens, prompt_bytes=4 * tokens, **how)
    entry.request.prefix = (mark(1024), mark(int(3.6 * tokens)))
    return entry


class TestAffinity:
    def test_where_the_prompt_was_read_before_its_first_token_comes_sooner(self):
        state = build_state("abc")
        first = build_known("r")
        place = find_place(state, first, state.ledger.worker("b"), 0.0)
        dispatch = send(state, first, *place, 0.0)
        assert dispatch.grounds.cached_tokens == 0
        state.ledger.release("r", 1.0)
        again = build_known("s")
        worker, ttft_s = choose_worker(state, again, 1.0)
        assert worker.worker_id == "b"
        assert ttft_s == pytest.approx(0.02 + 0.05 * 5.5)  # nine tenths are known, half of that is believed
        dispatch = send(state, again, worker, ttft_s, 1.0)
        assert dispatch.grounds.cached_tokens == 4500
        assert worker.backlog_tokens == 5500
        assert state.ledger.running["s"].known_ratio == pytest.approx(0.9)

    def test_with_one_worker_it_is_foreseen_too(self):
        state = build_state("a")
        state.prefixes.remember(build_known("r").request.prefix, state.ledger.worker("a").cache)
        assert choose_worker(state, build_known("s"), 0.0)[1] == pytest.approx(0.02 + 0.05 * 5.5)

    def test_a_worker_that_has_left_is_forgotten(self):
        state = build_state("ab")
        state.prefixes.remember(build_known("r").request.prefix, state.ledger.worker("a").cache)
        state.ledger.leave("a")
        state.ledger.join("a")
        state.ledger.worker("a").healthy = True
        state.ledger.sort_out(8)
        assert choose_worker(state, build_known("s"), 0.0)[1] == pytest.approx(0.02 + 0.05 * 10)

    def test_while_there_is_time_nothing_is_read_twice(self):
        state = build_state("ab")
        state.prefixes.remember(build_known("r").request.prefix, state.ledger.worker("a").cache)
        occupy(state, "a", 1).draining = False
        occupy(state, "b", 1)
        state.ledger.worker("a").permits = 1
        state.trust.ratio = 1.0
        entry = build_known("s", ttl_s=10.0)
        assert find_place(state, entry, None, 0.0) is None
        assert state.alarms.next_at() == pytest.approx(5.001)
        assert find_place(state, entry, state.ledger.worker("b"), 5.001)[0].worker_id == "b"

    def test_an_idle_worker_is_not_kept_waiting(self):
        state = build_state("ab")
        state.prefixes.remember(build_known("r").request.prefix, state.ledger.worker("a").cache)
        occupy(state, "a", 1)
        state.ledger.worker("a").permits = 1
        state.trust.ratio = 1.0
        assert find_place(state, build_known("s"), None, 0.0)[0].worker_id == "b"

    def test_what_is_soon_read_may_be_read_twice(self):
        state = build_state("ab")
        state.prefixes.remember(build_known("r", tokens=2000).request.prefix, state.ledger.worker("a").cache)
        occupy(state, "a", 1)
        occupy(state, "b", 1)
        state.ledger.worker("a").permits = 1
        assert find_place(state, build_known("s", tokens=2000), None, 0.0)[0].worker_id == "b"

    def build_talks(self, names="ab"):
        """Worker ``a``, which has read a conversation and is full; the others are busy and have room."""
        state = build_state(names, requests_per_worker=2)
        state.prefixes.remember(build_known("r").request.prefix, state.ledger.worker("a").cache)
        occupy(state, "a", 2)
        for name in names[1:]:
            occupy(state, name, 1)
        state.trust.ratio = 1.0
        return state

    def test_who_waits_for_its_home_holds_nobody_up(self):
        state = self.build_talks()
        talk = build_known("talk", sequence=next(count))
        state.room.add(talk)
        wait(state, "other")
        assert sent(pump(state, state.ledger.worker("b"), 0.0)) == ["other"]
        assert talk.home == "a"
        assert count_at_home(state, "a") == 1
        assert next(iter(state.room.all_bands()))[1].size == 1
        assert list(state.room.bands()) == []
        assert pump(state, state.ledger.worker("b"), 0.0) == []
        state.ledger.release(next(iter(state.ledger.worker("a").held)), 1.0)
        assert sent(pump(state, state.ledger.worker("a"), 1.0)) == ["talk"]
        assert state.room.size == 0

    def test_it_is_looked_for_a_place_everywhere_before_it_stands_aside(self):
        state = self.build_talks()
        state.ledger.release(next(iter(state.ledger.worker("a").held)), 0.0)
        talk = build_known("talk", sequence=next(count))
        state.room.add(talk)
        assert sent(pump(state, state.ledger.worker("b"), 0.0)) == ["talk"]
        assert state.ledger.running["talk"].permit.worker_id == "a"

    def test_after_half_of_its_patience_it_may_go_elsewhere_while_there_is_a_budget(self):
        state = self.build_talks()
        talks = [build_known(f"talk{turn}", sequence=next(count)) for turn in range(2)]
        talks[1].request.prefix = tuple(each + 1 for each in talks[1].request.prefix)  # another conversation
        state.prefixes.remember(talks[1].request.prefix, state.ledger.worker("a").cache)
        for talk in talks:
            state.room.add(talk)
        assert pump(state, None, 4.0) == []
        assert [talk.home for talk in talks] == ["a", "a"]
        state.alarms.ring(5.001)
        state.ledger.worker("b").permits = 1
        assert pump(state, None, 5.001) == []
        assert [talk.home for talk in talks] == [None, None]
        state.ledger.worker("b").permits = 8
        assert sent(pump(state, None, 5.001)) == ["talk0"]
        assert talks[1].home == "a"  # what was earned is spent
        assert state.alarms.next_at() > 5.002

    def test_an_idle_worker_takes_those_who_wait_for_others(self):
        state = self.build_talks()
        talk = build_known("talk", sequence=next(count))
        state.room.add(talk)
        assert pump(state, None, 0.0) == []
        state.ledger.release(next(iter(state.ledger.worker("b").held)), 1.0)
        assert sent(pump(state, state.ledger.worker("b"), 1.0)) == ["talk"]

    def test_what_an_idle_worker_reads_again_is_no_debt(self):
        state = self.build_talks()
        state.ledger.release(next(iter(state.ledger.worker("b").held)), 0.0)
        state.rereading.allows_at(2, 0, 1.0)
        for turn in range(3):
            entry = build_known(f"talk{turn}", sequence=next(count))
            entry.request.prefix = tuple(each + turn for each in entry.request.prefix)
            state.prefixes.remember(entry.request.prefix, state.ledger.worker("a").cache)
            place = find_place(state, entry, state.ledger.worker("b"), 1.0)
            send(state, entry, *place, 1.0)
            state.ledger.release(entry.request.request_id, 1.0)
        assert state.rereading.allows_at(2, 0, 1.0) == 1.0

    def test_a_home_that_has_left_is_waited_for_no_longer(self):
        state = self.build_talks("abc")
        talk = build_known("talk", sequence=next(count))
        state.room.add(talk)
        assert pump(state, None, 0.0) == []
        state.ledger.worker("a").healthy = False
        state.ledger.sort_out(2)
        for name in "bc":
            state.ledger.worker(name).permits = 1
        assert pump(state, None, 1.0) == []
        assert talk.home is None
        assert sum(1 for _ in state.room.bands()) == 1

    def test_no_look_lets_many_stand_aside_and_the_next_comes_at_once(self):
        state = self.build_talks()
        for turn in range(10):
            state.room.add(build_known(f"talk{turn}", sequence=next(count)))
        assert pump(state, None, 0.0) == []
        assert count_at_home(state, "a") == 8
        assert state.alarms.next_at() == pytest.approx(0.001)
        assert pump(state, None, 0.001) == []
        assert count_at_home(state, "a") == 10

    def test_when_a_home_leaves_no_look_lets_many_step_back(self):
        state = self.build_talks("abc")
        talks = [build_known(f"talk{turn}", sequence=next(count)) for turn in range(10)]
        for talk in talks:
            state.room.add(talk)
            state.room.band(1).stand_aside(talk, "a")
        state.ledger.worker("a").healthy = False
        state.ledger.sort_out(2)
        for name in "bc":
            state.ledger.worker(name).permits = 1
        assert pump(state, None, 1.0) == []
        assert count_at_home(state, "a") == 2
        assert state.alarms.next_at() == pytest.approx(1.001)
        assert pump(state, None, 1.001) == []
        assert count_at_home(state, "a") == 0

    def test_who_waits_for_its_home_goes_in_the_order_of_its_band(self):
        state = self.build_talks()
        early = wait(state, "early", due_at=2.0, hold_s=0.1)
        talk = build_known("talk", sequence=next(count), due_at=3.0)
        state.room.add(talk)
        state.room.band(1).stand_aside(talk, "a")
        late = wait(state, "late", due_at=4.0)
        state.ledger.worker("b").permits = 1
        state.ledger.worker("a").permits = 5
        assert sent(pump(state, state.ledger.worker("a"), 0.0)) == ["early", "talk", "late"]
        assert early.home is late.home is None

    def test_a_session_comes_back_to_its_worker_if_that_costs_little(self):
        state = build_state("abc")
        entry = build_entry("r")
        entry.request.session = "talk"
        send(state, entry, state.ledger.worker("c"), 0.1, 0.0)
        state.ledger.release("r", 1.0)
        again = build_entry("s")
        again.request.session = "talk"
        assert choose_worker(state, again, 1.0)[0].worker_id == "c"
        state.ledger.worker("c").backlog_tokens = 2000
        assert choose_worker(state, again, 1.0)[0].worker_id != "c"

    def test_among_equals_chance_decides(self):
        state = build_state("abcd")
        chosen = [choose_worker(state, build_entry(f"r{turn}"), 0.0)[0].worker_id for turn in range(400)]
        assert all(60 < chosen.count(name) < 140 for name in "abcd")


def test_a_worker_that_is_silent_is_foreseen_to_be_later_and_still_a_place():
    state = build_state()
    worker = state.ledger.worker("a")
    worker.load = WorkerLoad(0.0)
    entry = build_entry("r", tokens=2000, due_at=9.2)
    fresh_s = fits(state, entry, worker, 2.0)
    assert fresh_s == pytest.approx(0.12)
    assert fits(state, entry, worker, 30.0) > 1.5 * fresh_s


def test_what_medians_have_learned_is_part_of_what_is_foreseen():
    state = build_state()
    worker = state.ledger.worker("a")
    worker.medians._common = 2.0
    assert fits(state, build_entry("r", tokens=2000), worker, 0.0) == pytest.approx(0.24)
    dispatch = send(state, build_entry("r", tokens=2000), worker, 0.24, 0.0)
    assert dispatch.grounds.bound_s == pytest.approx(0.24)


def test_where_all_ask_for_the_same_nobody_else_need_be_looked_at():
    sent = build_entry("r", tpot_s=0.05, due_at=4.0, tokens=100)
    assert not _asks_less(build_entry("s", tpot_s=0.05, due_at=5.0, tokens=100), sent)
    assert not _asks_less(build_entry("s", tpot_s=0.05, due_at=5.0, tokens=900), sent)


def test_a_smaller_prompt_another_promise_or_none_asks_for_less():
    sent = build_entry("r", tpot_s=0.05, due_at=4.0, tokens=100)
    assert _asks_less(build_entry("s", tpot_s=0.05, due_at=5.0, tokens=99), sent)
    assert _asks_less(build_entry("s", tpot_s=0.1, due_at=5.0, tokens=100), sent)
    assert _asks_less(build_entry("s", tpot_s=0.05, tokens=100), sent)
    assert _asks_less(build_entry("s", tpot_s=0.05, due_at=5.0, band=2, tokens=100), sent)


class TestCeilings:
    def test_a_band_that_is_held_back_leaves_the_rest_of_the_permits_free(self):
        state = build_state(shedding=SheddingConfig(ceilings=((1, 0.75), (BEST_EFFORT, 0.5))))
        state.ledger.worker("a").permits = 8
        for number in range(10):
            wait(state, f"b{number}", band=BEST_EFFORT)
        assert len(sent(pump(state, None, 0.0))) == 4
        for number in range(10):
            wait(state, f"s{number}", band=1)
        assert len(sent(pump(state, None, 0.0))) == 2
        wait(state, "g", band=0)
        assert sent(pump(state, None, 0.0)) == ["g"]
