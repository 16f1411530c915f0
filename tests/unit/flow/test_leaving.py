"""Who goes when there is one worker too many."""

from service.domain.units import WorkerId
from service.flow.config import FlowConfig
from service.flow.leaving import choose_leaving
from service.flow.retry import RetryBudget
from service.flow.state import FlowState
from service.flow.worker import WorkerState


def pool(*workers: WorkerState) -> FlowState:
    state = FlowState(FlowConfig(), None, RetryBudget(1.0))  # type: ignore[arg-type]
    for cache, worker in enumerate(workers):
        worker.cache = cache
        state.ledger.workers[worker.worker_id] = worker
    state.ledger.sort_out(8)
    return state


def worker(name: str, held: int = 0, healthy: bool = True, **changes: bool) -> WorkerState:
    return WorkerState(
        WorkerId(name), healthy=healthy, held={f"{name}{index}": None for index in range(held)}, **changes
    )


def test_the_least_loaded_goes_and_the_last_that_came_among_equals() -> None:
    assert choose_leaving(pool(worker("a", 3), worker("b", 1), worker("c", 2))) == "b"
    assert choose_leaving(pool(worker("a", 1), worker("b", 1))) == "b"


def test_warm_sessions_stay() -> None:
    state = pool(worker("a"), worker("b"))
    state.sessions.remember("s", 1)
    assert choose_leaving(state) == "a"


def test_one_that_does_not_serve_goes_first_and_those_that_leave_already_do_not_count() -> None:
    assert choose_leaving(pool(worker("a", 5), worker("b", 2, healthy=False), worker("c"))) == "b"
    assert choose_leaving(pool(worker("a"), worker("b", healthy=False))) == "b"
    assert choose_leaving(pool(worker("a", 5), worker("b"), worker("c", draining=True))) == "b"
    assert choose_leaving(pool(worker("a", 5), worker("b"), worker("c", listed=False, healthy=False))) == "b"


def test_the_last_that_serves_stays() -> None:
    assert choose_leaving(pool()) is None
    assert choose_leaving(pool(worker("a"))) is None
    assert choose_leaving(pool(worker("a"), worker("b", draining=True))) is None
