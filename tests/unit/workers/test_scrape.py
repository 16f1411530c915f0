"""What is read from a metrics page: two of a real worker, and pages that are damaged or strange."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.load import WorkerLoad
from service.workers.identity import Incarnation
from service.workers.metric_names import SERIES
from service.workers.scrape import read_page

DATA = Path(__file__).parent / "data"
REAL = (DATA / "metrics_vllm_0_32.txt").read_bytes()
EARLIER = (DATA / "metrics_vllm_0_32_earlier.txt").read_bytes()


def test_reads_a_real_page() -> None:
    page = read_page(REAL, 5.0)
    assert page.recognised
    assert page.incarnation == Incarnation(1796069810.86, "MiniMax-M3.1-Flash", 414.0)
    assert page.load == WorkerLoad(
        observed_at=5.0,
        running_requests=0,
        waiting_requests=0,
        kv_cache_ratio=0.0,
        progress_tokens=1266.0,
        prompt_tokens=1236,
        generation_tokens=414,
        finished_requests=36,
        rejected_requests=0,
        preemptions=0,
        prefix_queried_tokens=1236,
        prefix_hit_tokens=384,
        drafts=None,  # this worker did not speculate
        draft_tokens=None,
        accepted_tokens=None,
    )
    assert page.load.age_s(7.5) == 2.5


def test_progress_grows_between_two_real_pages_of_one_process() -> None:
    before, after = read_page(EARLIER, 1.0), read_page(REAL, 2.0)
    assert before.load.progress_tokens < after.load.progress_tokens
    assert before.incarnation.started_at == after.incarnation.started_at


def test_agrees_with_the_reference_parser_on_the_real_page() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(REAL.decode()):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    ours = read_page(REAL, 0.0).load
    assert ours.finished_requests == totals["vllm:request_success_total"]
    assert ours.progress_tokens == totals["vllm:iteration_tokens_total_sum"]
    assert ours.rejected_requests == totals["vllm:admission_rejections_total"]
    assert ours.prefix_hit_tokens == totals["vllm:prefix_cache_hits_total"]


def test_series_names_are_unique_and_not_the_ones_vllm_no_longer_has() -> None:
    names = [series.name for series in SERIES]
    assert len(set(names)) == len(names)
    assert b"vllm:gpu_cache_usage_perc" not in names
    assert read_page(b"vllm:gpu_cache_usage_perc 0.5\n", 0.0).load.kv_cache_ratio is None


def test_engines_are_added_up_and_the_fullest_cache_counts() -> None:
    page = b"\n".join(
        [
            b'vllm:num_requests_running{engine="0",model_name="m"} 3.0',
            b'vllm:num_requests_running{engine="1",model_name="m"} 4.0',
            b'vllm:kv_cache_usage_perc{engine="0"} 0.25',
            b'vllm:kv_cache_usage_perc{engine="1"} 0.75',
        ]
    )
    load = read_page(page, 0.0).load
    assert load.running_requests == 7
    assert load.kv_cache_ratio == 0.75


def test_without_step_counter_the_token_totals_show_progress() -> None:
    page = b"vllm:prompt_tokens_total 10\nvllm:generation_tokens_total 5\n"
    assert read_page(page, 0.0).load.progress_tokens == 15
    assert read_page(b"vllm:generation_tokens_total 5\n", 0.0).load.progress_tokens is None


@pytest.mark.parametrize(
    ("line", "running"),
    [
        (b"vllm:num_requests_running 3.0", 3),
        (b"vllm:num_requests_running  3.0  1700000000", 3),  # a timestamp may follow
        (b'vllm:num_requests_running{a="x} 9 y",b="\\" 8"} 3', 3),  # labels may hold anything
        (b'vllm:num_requests_running{engine="0",} 3e0', 3),
        (b'vllm:num_requests_running{} 3 # {id="1"} 0.5', 3),  # OpenMetrics exemplar
        (b"vllm:num_requests_running 3.0\r", 3),
        (b"vllm:num_requests_running NaN", None),
        (b"vllm:num_requests_running +Inf", None),
        (b"vllm:num_requests_running -1", None),
        (b"vllm:num_requests_running many", None),
        (b"vllm:num_requests_running", None),
        (b'vllm:num_requests_running{engine="0', None),
        (b"vllm:num_requests_running_other 3", None),
        (b"# vllm:num_requests_running 3", None),
    ],
)
def test_lines(line: bytes, running: int | None) -> None:
    assert read_page(line, 0.0).load.running_requests == running


def test_one_unreadable_engine_makes_the_sum_unknown() -> None:
    page = b'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} NaN\n'
    assert read_page(page, 0.0).load.running_requests is None
    assert read_page(b'vllm:num_requests_running{engine="1"} x\n' + page, 0.0).load.running_requests is None
    assert read_page(page + b'vllm:num_requests_running{engine="2"} 4\n', 0.0).load.running_requests is None


def test_cache_above_one_is_unknown() -> None:
    assert read_page(b"vllm:kv_cache_usage_perc 47.0", 0.0).load.kv_cache_ratio is None


def test_a_model_name_is_taken_only_from_its_label() -> None:
    assert read_page(b'vllm:num_requests_running{xmodel_name="n"} 1', 0.0).incarnation.model is None
    assert read_page(b"vllm:num_requests_running 1", 0.0).incarnation.model is None


@pytest.mark.parametrize("page", [b"", b"<html>busy</html>", b"\n\n", b"\xff\xfe"])
def test_a_page_without_our_series_is_not_recognised(page: bytes) -> None:
    read = read_page(page, 3.0)
    assert not read.recognised
    assert read.load == WorkerLoad(observed_at=3.0)
    assert read.incarnation == Incarnation()


@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([s.name for s in SERIES])), max_size=8))
def test_never_raises(pieces: list[bytes]) -> None:
    read_page(b" ".join(pieces), 0.0)
    read_page(b"\n".join(pieces), 0.0)
    read_page(b"{".join(pieces), 0.0)


@given(st.integers(0, len(REAL)), st.integers(0, 200))
def test_a_damaged_page_never_raises(at: int, gone: int) -> None:
    read_page(REAL[:at] + REAL[at + gone :], 0.0)
