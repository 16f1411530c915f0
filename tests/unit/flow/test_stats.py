"""A snapshot of one worker."""

from service.flow.stats import WorkerStats, build_worker_stats
from service.flow.worker import WorkerState


def test_a_worker_at_rest_says_so_until_its_rest_is_over():
    worker = WorkerState("a", healthy=True, known=True, held={"r": None})
    worker.breaker.busy_until = 2.0
    assert build_worker_stats(worker, 1.0) == WorkerStats("a", 1, True, False, True, True)
    assert build_worker_stats(worker, 2.0) == WorkerStats("a", 1, True, False, True, False)


def test_a_worker_under_probe_rests():
    worker = WorkerState("a", healthy=True)
    worker.breaker.open_until = 1.0
    worker.breaker.probing = True
    assert build_worker_stats(worker, 5.0).resting


def test_a_worker_that_was_never_healthy_starts():
    assert build_worker_stats(WorkerState("a"), 0.0).starting
    assert not build_worker_stats(WorkerState("a", known=True), 0.0).starting
