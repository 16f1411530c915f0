"""How many requests a worker can carry is found."""

import pytest

from service.domain.load import WorkerLoad
from service.flow.limit import FIRST_LIMIT, UNBOUNDED, WorkerLimit, find_batch
from service.flow.pace import DecodePace


def load(running, waiting=0):
    return WorkerLoad(0.0, running, waiting, 0.5)


def observe(limit, running, waiting=0, target_s=None, pace=None, prefilling_s=0.0):
    limit.begin(load(running, waiting), running)
    limit.observe(load(running, waiting), float(running), running, prefilling_s, target_s, pace or DecodePace())


@pytest.fixture
def line():
    """10 ms at one request and half a millisecond more for each."""
    pace = DecodePace()
    for _ in range(100):
        for batch in (1.0, 10.0, 50.0, 100.0):
            pace.observe(batch, 0.01 + 0.0005 * (batch - 1.0))
    return pace


def test_it_doubles_while_all_is_well_and_used():
    limit = WorkerLimit()
    observe(limit, 8)
    observe(limit, 16)
    assert limit.limit == 4 * FIRST_LIMIT
    assert not limit.found
    observe(limit, 3)
    assert limit.limit == 4 * FIRST_LIMIT


def test_pace_bounds_it(line):
    limit = WorkerLimit()
    for _ in range(10):
        observe(limit, limit.limit, target_s=0.04, pace=line)
    assert limit.found
    assert line.predict_s(limit.limit) <= 0.036 < line.predict_s(limit.limit + 3)


def test_a_slower_machine_lowers_it(line):
    limit = WorkerLimit()
    for _ in range(10):
        observe(limit, limit.limit, target_s=0.04, pace=line)
    before = limit.limit
    for _ in range(20):
        line.observe(50.0, 0.1)
    observe(limit, 1, target_s=0.04, pace=line)
    assert limit.limit < before


def test_requests_that_wait_inside_show_the_slots():
    limit = WorkerLimit()
    limit.limit = 100
    observe(limit, 32, waiting=4)
    assert limit.slots is None  # once may be chance
    observe(limit, 32, waiting=4)
    assert (limit.slots, limit.limit, limit.found) == (32, 32, True)


def test_requests_that_wait_for_prompts_show_nothing():
    limit = WorkerLimit()
    for _ in range(5):
        observe(limit, 32, waiting=4, prefilling_s=1.0)
    assert limit.slots is None


def test_more_that_run_raise_the_slots():
    limit = WorkerLimit()
    for _ in range(2):
        observe(limit, 16, waiting=1)
    observe(limit, 20)
    assert limit.slots == 20


def test_after_fifteen_quiet_readings_more_are_tried():
    limit = WorkerLimit()
    for _ in range(2):
        observe(limit, 16, waiting=1)
    for _ in range(14):
        observe(limit, 15)
    assert limit.slots == 16
    observe(limit, 15)
    assert limit.slots == 18
    observe(limit, 2)
    assert limit.slots == 18


@pytest.mark.parametrize("told", [WorkerLoad(0.0, None, 0), WorkerLoad(0.0, 8, None)])
def test_without_figures_it_never_grows(told):
    limit = WorkerLimit()
    observe(limit, 1)
    limit.observe(told, 8.0, 8, 0.0, None, DecodePace())
    assert limit.limit == FIRST_LIMIT


@pytest.mark.parametrize("told", [None, WorkerLoad(0.0, None, 0), WorkerLoad(0.0, 8, None)])
def test_a_worker_that_never_told_has_no_limit_but_the_operators(told):
    limit = WorkerLimit()
    if told is not None:
        limit.begin(told, 8)
    limit.observe(told, 8.0, 8, 0.0, None, DecodePace())
    assert limit.limit == UNBOUNDED
    observe(limit, 3)
    assert limit.limit == FIRST_LIMIT  # its first word: the search begins


def test_the_search_begins_with_what_runs_already():
    limit = WorkerLimit()
    limit.begin(load(1), 40)
    assert limit.limit == 40
    limit.begin(load(1), 2)
    assert limit.limit == 40


def test_a_worker_that_never_speaks_is_bounded_by_the_pace_of_its_answers(line):
    limit = WorkerLimit()
    limit.observe(None, 8.0, 8, 0.0, 0.04, line)
    assert line.predict_s(limit.limit) <= 0.036 < line.predict_s(limit.limit + 3)
    assert not limit.found  # that was carried far from eight
    limit.observe(None, float(limit.limit), limit.limit, 0.0, 0.04, line)
    assert limit.found


def test_find_batch(line):
    assert line.predict_s(find_batch(line, 0.02, 1000.0)) == pytest.approx(0.02, rel=0.02)
    assert find_batch(line, 0.0001, 100.0) == 1.0
    assert find_batch(DecodePace(), 0.01, 64.0) == pytest.approx(64.0, rel=0.01)


def test_a_bound_that_nobody_promises_any_more_is_given_up(line):
    limit = WorkerLimit(100)
    observe(limit, 100, target_s=0.03, pace=line)
    assert limit.found
    assert limit.limit < 40
    observe(limit, 90, pace=line)
    assert not limit.found
    assert limit.limit >= 90


def test_a_reading_that_tells_nothing_gives_no_bound_up(line):
    limit = WorkerLimit(100)
    observe(limit, 100, target_s=0.03, pace=line)
    found = limit.limit
    limit.observe(WorkerLoad(1.0), 90.0, 90, 0.0, None, line)
    assert (limit.found, limit.limit) == (True, found)
