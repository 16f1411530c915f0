"""Windows, budgets and accounts: what a tenant may spend, and that nothing of it is counted twice or lost."""

import pytest

from service.domain.contract import Contract
from service.domain.outcome import Outcome
from service.flow.budget import Budget
from service.flow.charge import Spending, compute_charge
from service.flow.lease import Grant, Share, bound_overshoot, bound_running_overshoot
from service.flow.quota import Account, Limit, Needed, Reservation, Shortfall
from service.flow.window import GRAIN_S, SPAN_S, SlidingWindow, is_past, leaves_at, slot_of

MONTH = 24312


def account(**limits):
    return Account(Contract(**limits))


def reserve(one, now, prompt=0, output=0, month=MONTH):
    return one.reserve(prompt, output, now, month)


# ---------------------------------------------------------------- windows


def test_what_was_spent_leaves_a_minute_after_the_youngest_of_its_slot():
    window = SlidingWindow()
    window.add(5, slot_of(10.2))
    assert window.clears_at() == leaves_at(slot_of(10.2)) == 10.5 + SPAN_S
    assert window.advance(70.4) == 5
    assert window.advance(70.5) == 0
    assert window.clears_at() is None
    assert not is_past(slot_of(10.2), 70.4)
    assert is_past(slot_of(10.2), 70.5)


def test_amounts_are_kept_by_slot_in_order_wherever_they_come():
    window = SlidingWindow()
    for amount, moment in ((1, 5.0), (2, 5.4), (4, 9.0), (8, 7.0), (16, 7.1), (-4, 9.2)):
        window.add(amount, slot_of(moment))
    assert window.entries() == [(10, 3), (14, 24), (18, 0)]
    assert window.used == 27


def test_what_is_needed_is_free_when_enough_of_the_oldest_has_left():
    window = SlidingWindow()
    window.add(3, slot_of(1.0))
    window.add(3, slot_of(4.0))
    assert window.frees_at(3) == leaves_at(slot_of(1.0))
    assert window.frees_at(4) == leaves_at(slot_of(4.0))
    assert window.frees_at(7) is None


# ---------------------------------------------------------------- one gateway by itself


def test_exactly_the_limit_passes_in_any_minute():
    one, passed = account(requests_per_minute=100), []
    for tick in range(4 * 400):  # 4 a second, the limit is 100 a minute
        now = tick * 0.25
        if isinstance(reserve(one, now), Reservation):
            passed.append(now)
    for begin in range(340):
        assert sum(begin <= moment < begin + 60.0 for moment in passed) <= 100
    assert len(passed) >= 0.99 * 100 * 400 / 60.5


def test_five_hundred_at_once_against_a_hundred():
    one = account(requests_per_minute=100, tokens_per_minute=10**6)
    found = [reserve(one, 7.0, 10, 10) for _ in range(500)]
    assert sum(isinstance(answer, Reservation) for answer in found) == 100
    short = found[-1]
    assert isinstance(short, Shortfall)
    assert (short.limit, short.certain, short.frees_at) == (Limit.REQUESTS, True, leaves_at(slot_of(7.0)))


def test_all_or_nothing_is_charged():
    one = account(requests_per_minute=10, tokens_per_minute=100)
    assert isinstance(reserve(one, 0.0, 60, 0), Reservation)
    short = reserve(one, 0.0, 41, 0)
    assert (short.limit, short.certain) == (Limit.TOKENS, True)
    assert one.requests.free(False, 1, 0.0) == 9
    assert isinstance(reserve(one, 0.0, 40, 0), Reservation)


def test_one_larger_than_the_minute_passes_when_that_is_untouched_and_leaves_a_debt():
    one = account(tokens_per_minute=100)
    held = reserve(one, 0.0, 150, 50)
    assert isinstance(held, Reservation)
    assert one.tokens.free(False, 1, 0.0) == -100
    assert one.tokens.remaining(False, 1, 0.0) == 0
    assert isinstance(reserve(one, 1.0, 1, 0), Shortfall)
    one.settle(held, 20, True, 2.0)
    assert one.tokens.free(False, 1, 2.0) == 80


def test_concurrency_counts_what_has_not_ended():
    one = account(concurrency=3)
    held = [reserve(one, 0.0) for _ in range(50)]
    assert [type(answer) for answer in held] == [Reservation] * 3 + [Shortfall] * 47
    assert (held[-1].limit, held[-1].certain, held[-1].frees_at) == (Limit.CONCURRENCY, True, None)
    one.settle(held[0], 0, True, 1.0)
    one.settle(held[0], 0, True, 1.0)  # a second word changes nothing
    assert isinstance(reserve(one, 1.0), Reservation)
    assert isinstance(reserve(one, 1.0), Shortfall)


def test_a_refund_goes_to_the_minute_it_came_from():
    one = account(requests_per_minute=2, tokens_per_minute=100)
    early, late = reserve(one, 0.0, 50, 0), reserve(one, 30.0, 50, 0)
    one.settle(early, 0, False, 70.0)  # its minute is over: nothing comes back a second time
    assert one.tokens.free(False, 1, 70.0) == 50
    assert one.requests.free(False, 1, 70.0) == 1
    one.settle(late, 0, False, 71.0)
    assert one.tokens.free(False, 1, 71.0) == 100
    assert one.requests.free(False, 1, 71.0) == 2


def test_an_answer_longer_than_foreseen_is_charged_as_it_grows():
    one = account(tokens_per_minute=100)
    held = reserve(one, 0.0, 10, 20)
    one.extend(held, 50, 1.0)
    assert one.tokens.free(False, 1, 1.0) == 40
    one.settle(held, 65, True, 2.0)
    assert one.tokens.free(False, 1, 2.0) == 35
    assert held.output_tokens == 50


def test_the_month_has_its_own_count_and_ends():
    one = account(tokens_per_month=100)
    held = reserve(one, 0.0, 60, 0)
    short = reserve(one, 0.0, 41, 0)
    assert (short.limit, short.certain) == (Limit.MONTH, True)
    one.settle(held, 50, True, 1.0)
    assert one.month_left(MONTH) == 50
    assert isinstance(reserve(one, 2.0, 50, 0), Reservation)
    assert one.month_left(MONTH + 1) == 100
    late = reserve(one, 3.0, 10, 0, MONTH + 1)
    one.settle(late, 20, True, 4.0)
    assert one.month_left(MONTH + 1) == 80


def test_what_a_month_refunds_after_its_end_is_not_given_to_the_next():
    one = account(tokens_per_month=100)
    held = reserve(one, 0.0, 60, 0)
    assert one.month_left(MONTH + 1) == 100
    one.settle(held, 0, False, 1.0)
    assert one.month_left(MONTH + 1) == 100


def test_what_runs_beyond_the_contract_is_counted_in_the_month_alone():
    one = account(requests_per_minute=1, tokens_per_minute=10, concurrency=1, tokens_per_month=1000)
    assert isinstance(reserve(one, 0.0, 5, 5), Reservation)
    beyond = one.admit_beyond(20, 20, 0.0, MONTH)
    assert one.running == 1
    assert one.month_left(MONTH) == 950
    one.extend(beyond, 30, 1.0)
    one.settle(beyond, 10, True, 2.0)
    assert one.month_left(MONTH) == 980
    assert one.running == 1
    assert one.tokens.free(False, 1, 2.0) == 0


def test_another_contract_keeps_what_was_spent():
    one = account(requests_per_minute=5, tokens_per_minute=10)
    reserve(one, 0.0, 4, 0)
    one.reconfigure(Contract(requests_per_minute=3, concurrency=2))
    assert one.requests.free(False, 1, 0.0) == 2
    assert one.tokens is None
    one.reconfigure(Contract(tokens_per_minute=7))
    assert one.tokens.free(False, 1, 0.0) == 7
    assert one.requests is None


def test_contracts_that_count_nothing_are_told_apart():
    assert not Contract().limited
    assert Contract(tokens_per_month=1).limited


def test_what_is_left_and_when_all_of_it_is_back():
    budget = Budget(10)
    assert budget.resets_at(5.0) == 5.0
    assert budget.frees_at(1, 5.0) == 5.0
    budget.charge(4, 5.0)
    budget.charge(4, 20.0)
    assert budget.remaining(False, 1, 20.0) == 2
    assert budget.resets_at(20.0) == leaves_at(slot_of(20.0))
    assert budget.frees_at(3, 20.0) == leaves_at(slot_of(5.0))
    assert budget.frees_at(7, 20.0) == leaves_at(slot_of(20.0))


# ---------------------------------------------------------------- charges


def spending(prompt=None, output=None, dispatched=True, began=False):
    return Spending(30, 40, prompt, output, dispatched, began)


@pytest.mark.parametrize(
    ("outcome", "what", "charge"),
    [
        (Outcome.COMPLETED, spending(7, 3), (10, True)),
        (Outcome.COMPLETED, spending(), (70, True)),
        (Outcome.COMPLETED, spending(-5, 3), (3, True)),
        (Outcome.CLIENT_GONE, spending(None, 20, began=True), (50, True)),
        (Outcome.STREAM_BROKEN, spending(9, 5, began=True), (14, True)),
        (Outcome.WORKER_FAILED, spending(), (0, False)),
        (Outcome.QUEUE_FULL, spending(dispatched=False), (0, False)),
        (Outcome.SHED, spending(dispatched=False), (0, False)),
        (Outcome.CLIENT_GONE, spending(), (30, True)),
        (Outcome.CLIENT_GONE_QUEUED, spending(dispatched=False), (0, True)),
        (Outcome.WORKER_REFUSED, spending(), (0, True)),
    ],
)
def test_what_a_request_is_charged(outcome, what, charge):
    assert compute_charge(outcome, what) == charge


def test_slots_divide_the_minute():
    assert SPAN_S / GRAIN_S == 120


# ---------------------------------------------------------------- leases


def grant(held, spare=0, spent=(), running=0, month=0):
    share = Share(held, spare, list(spent))
    return Grant(False, share, share, running, month)


def test_the_bound_is_zero_for_one_and_a_limit_at_most():
    assert bound_overshoot(100, 1) == bound_overshoot(100, 1, crashed=True, forgotten=True) == 0
    assert bound_running_overshoot(100, 1) == 0
    assert bound_overshoot(100, 4) == 75
    assert bound_overshoot(100, 4, crashed=True) == 100
    assert bound_overshoot(100, 4, forgotten=True) == 100


def test_only_what_is_leased_is_spent_and_the_last_word_is_believed():
    one = account(requests_per_minute=10, tokens_per_minute=1000)
    one.by_share = False
    first = reserve(one, 0.0, 10, 10)
    assert (first.certain, first.limit) == (False, Limit.REQUESTS)  # nothing was asked for yet
    report = one.draw_up(Needed(1, 20, 1), 0.0, MONTH)
    assert (report.fresh, report.requests.want, report.tokens.needed) == (True, 2, 20)
    one.accept(report, grant(2, 3), 0.0, 0.0)
    assert one.holds
    assert isinstance(reserve(one, 0.1, 0, 1), Reservation)
    assert one.requests.remaining(True, 1, 0.1) == 4
    assert isinstance(reserve(one, 0.2, 0, 1), Reservation)
    assert reserve(one, 0.3, 0, 1).certain is False  # more may be had
    report = one.draw_up(Needed(1, 1, 1), 0.4, MONTH)
    assert report.requests.spent == [(0, 2)]
    one.accept(report, grant(0, 0, [(0, 10)]), 0.4, 0.4)
    short = reserve(one, 0.5, 0, 1)
    assert (short.certain, short.frees_at) == (True, leaves_at(0))
    assert reserve(one, 9.0, 0, 1).certain is False  # the lease is over


def test_a_report_is_the_same_until_it_was_heard():
    one = account(requests_per_minute=10, tokens_per_month=100)
    reserve(one, 0.0, 5, 0)
    first = one.draw_up(Needed(), 1.0, MONTH)
    reserve(one, 1.1, 7, 0)
    again = one.draw_up(Needed(), 1.2, MONTH)
    assert (first.number, first.requests.spent, first.month_spent) == (again.number, [(2, 1)], 5)
    assert (again.requests.spent, again.month_spent) == ([(2, 1)], 5)
    assert one.month_left(MONTH) == 88
    one.accept(again, grant(3, month=50), 1.2, 1.3)
    assert one.requests.held == 2  # the second was spent meanwhile
    assert one.month_left(MONTH) == 43
    later = one.draw_up(Needed(), 1.4, MONTH)
    assert (later.number > again.number, later.requests.spent, later.month_spent) == (True, [(0, 1)], 7)


def test_a_store_that_has_forgotten_is_told():
    one = account(requests_per_minute=10)
    report = one.draw_up(Needed(), 0.0, MONTH)
    one.accept(report, grant(1, 2, [(4, 7)]), 0.0, 0.0)
    report = one.draw_up(Needed(), 1.0, MONTH)
    assert (report.fresh, report.requests.recall) == (False, [])
    one.accept(report, Grant(lost=True), 1.0, 1.0)
    report = one.draw_up(Needed(), 1.0, MONTH)
    assert (report.fresh, report.requests.recall) == (True, [(6, 7)])


def test_an_answer_of_another_month_or_another_contract_changes_what_it_can():
    one = account(requests_per_minute=10, tokens_per_minute=10, tokens_per_month=100)
    report = one.draw_up(Needed(), 0.0, MONTH)
    one.reconfigure(Contract(tokens_per_month=100))
    assert one.month_left(MONTH + 1) == 100
    one.accept(report, grant(5, month=90), 0.0, 0.0)
    assert one.month_left(MONTH + 1) == 100
    assert not one.holds


def test_what_runs_is_held_and_renewed():
    one = account(concurrency=8)
    one.by_share = False
    report = one.draw_up(Needed(0, 0, 2), 0.0, MONTH)
    assert (report.want_running, report.limit_running) == (4, 8)
    one.accept(report, Grant(False, held_running=2), 0.0, 0.0)
    held = [reserve(one, 0.1) for _ in range(3)]
    assert [type(answer) for answer in held] == [Reservation, Reservation, Shortfall]
    assert not held[2].certain
    report = one.draw_up(Needed(0, 0, 1), 0.2, MONTH)
    one.accept(report, Grant(False, held_running=2), 0.2, 0.2)
    assert reserve(one, 0.3).certain
    assert one.holds
