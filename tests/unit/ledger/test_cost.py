"""What the record costs a request: on the loop, and on the interpreter that the writing thread shares with it.

Measured (CPU, best of seven, CPython 3.11, a shared machine): 0.9 us on the loop, 0.5 of them for the verdict that the
counters need too; 3.6 us in the thread.
"""

import sys
import time
import timeit

import pytest

from service.domain.outcome import Outcome
from service.ledger.bookkeeper import Bookkeeper
from service.ledger.spool import Spool
from service.runtime.account import Accounts
from service.runtime.clock import MonotonicClock
from tests.support.record import NOVEMBER_S, TERMS, TIERS, build_row_of, build_settled

pytestmark = pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer is paid for with every line")

CLOCK = MonotonicClock()
COUNT = 2000
BUDGET_S = 10e-6


def best_of(step, number=1):
    return min(timeit.repeat(step, number=number, repeat=7, timer=time.process_time))


def test_a_request_costs_less_than_ten_microseconds_in_all(tmp_path):
    spool = Spool(tmp_path, 1 << 30)
    book = Bookkeeper(spool, TERMS, CLOCK.now, CLOCK.wall)
    accounts = Accounts([book], TIERS)
    settled = [build_settled(number, NOVEMBER_S) for number in range(COUNT)]

    def ends_on_the_loop():
        for one in settled:
            one.outcome = None
            book.open(one)
            accounts.settle(one, Outcome.COMPLETED, NOVEMBER_S + 2.0)
        book._opened.clear()
        book._settled.clear()

    def is_written_by_the_thread():
        spool.write([], [build_row_of(one) for one in settled])

    on_the_loop_s, in_the_thread_s = best_of(ends_on_the_loop) / COUNT, best_of(is_written_by_the_thread) / COUNT
    book.close()
    assert on_the_loop_s < 2e-6 * 2
    assert on_the_loop_s + in_the_thread_s < BUDGET_S


def test_an_idle_flush_costs_a_microsecond(tmp_path):
    book = Bookkeeper(Spool(tmp_path, 1 << 30), TERMS, CLOCK.now, CLOCK.wall)
    flush_s = best_of(book.flush, 1000) / 1000
    book.close()
    assert flush_s < 2e-6 * 2
