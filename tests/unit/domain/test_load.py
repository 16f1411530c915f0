"""A worker's load knows its age."""

from service.domain.load import WorkerLoad


def test_age_is_the_time_since_it_was_said():
    assert WorkerLoad(observed_at=3.0).age_s(5.5) == 2.5


def test_what_was_not_said_is_none_and_not_zero():
    load = WorkerLoad(observed_at=0.0)
    assert load.running_requests is None
    assert load.waiting_requests is None
    assert load.kv_cache_ratio is None
    assert load.progress_tokens is None
