"""What the simulated clients send: moments, sizes, contracts, traces."""

import itertools
import random
import statistics

import pytest

from loadtests.sim import lengths, traces
from loadtests.sim.arrivals import Process, Stretch, TraceProcess, build_burst, build_diurnal, build_ramp, build_step
from loadtests.sim.population import (
    DEFAULT,
    FLEX,
    HIGH,
    PRIORITY,
    Bucket,
    TenantSpec,
    find_ttft_target_s,
    iterate_offers,
)
from loadtests.sim.scenario import SCENARIOS, shorten

needs_traces = pytest.mark.skipif(traces.find_folder() is None, reason="the public traces are not on this machine")


def draw(process, rate=50.0, until_s=400.0, seed=1):
    return list(process.iterate(rate, until_s, random.Random(seed)))


def compute_cv(moments):
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    return statistics.pstdev(gaps) / statistics.fmean(gaps)


@pytest.mark.parametrize("cv", [0.0, 1.0, 3.0])
def test_rate_and_burstiness_are_those_asked_for(cv):
    moments = draw(Process(cv=cv))
    assert len(moments) / 400.0 == pytest.approx(50.0, rel=0.1)
    assert compute_cv(moments) == pytest.approx(cv, abs=0.03 + 0.1 * cv)


def test_no_rate_no_requests():
    assert draw(Process(), rate=0.0) == []


def count_between(moments, begin, end):
    return sum(begin <= moment < end for moment in moments) / (end - begin)


def test_a_burst_multiplies_the_rate_for_a_while():
    moments = draw(Process(shape=build_burst(100.0, 30.0, 10.0)))
    assert count_between(moments, 0.0, 100.0) == pytest.approx(50.0, rel=0.1)
    assert count_between(moments, 100.0, 130.0) == pytest.approx(500.0, rel=0.1)
    assert count_between(moments, 130.0, 400.0) == pytest.approx(50.0, rel=0.1)


def test_a_step_down_to_nothing_ends_the_stream():
    moments = draw(Process(shape=build_step(100.0, 0.0)))
    assert moments[-1] < 100.0


def test_a_ramp_climbs_and_stays():
    moments = draw(Process(shape=build_ramp(100.0, 200.0, 0.0, 2.0)))
    assert count_between(moments, 0.0, 100.0) == 0.0
    assert count_between(moments, 100.0, 200.0) == pytest.approx(50.0, rel=0.1)
    assert count_between(moments, 200.0, 400.0) == pytest.approx(100.0, rel=0.1)


def test_a_day_has_its_low_at_night():
    moments = draw(Process(shape=build_diurnal(400.0, 0.2, 2.0)))
    assert count_between(moments, 0.0, 40.0) < 25.0 < 80.0 < count_between(moments, 180.0, 220.0)


def test_stretches_may_touch():
    shape = (Stretch(0.0, 10.0, 1.0), Stretch(10.0, 20.0, 0.0), Stretch(20.0, 30.0, 2.0))
    moments = draw(Process(shape=shape), until_s=30.0)
    assert count_between(moments, 10.0, 20.0) == 0.0
    assert moments == sorted(moments)


def test_a_bucket_lets_its_burst_and_its_rate_through():
    bucket = Bucket(10.0, 20.0)
    assert sum(bucket.take(0.0) for _ in range(100)) == 20
    assert sum(bucket.take(1.0) for _ in range(100)) == 10
    assert all(Bucket(None, 0.0).take(0.0) for _ in range(1000))
    assert not Bucket(0.0, 0.0).take(5.0)


def test_targets_are_by_size():
    assert find_ttft_target_s(PRIORITY.tier, 100) == 1.0
    assert find_ttft_target_s(PRIORITY.tier, 100_000) == 12.0
    assert find_ttft_target_s(DEFAULT.tier, 10_000_000) == 120.0
    assert find_ttft_target_s(HIGH.tier, 64) == 1.0
    assert FLEX.tier.best_effort


def list_offers(seed, tenants=None):
    scenario = SCENARIOS["mixed"]
    offers = iterate_offers(tenants or scenario.tenants, scenario.mix, 50.0, 20.0, seed)
    return [(o.number, o.at, o.tenant, o.size.prompt_tokens, o.size.output_tokens, o.prompt_bytes) for o in offers]


def test_the_same_seed_offers_the_same():
    assert list_offers(7) == list_offers(7)
    assert list_offers(7) != list_offers(8)


def test_a_tenants_requests_do_not_depend_on_its_neighbours():
    one, other = TenantSpec("a", "default", 0.5), TenantSpec("b", "default", 0.5)
    alone = [offer[1:] for offer in list_offers(3, (one,))]
    together = [offer[1:] for offer in list_offers(3, (one, other)) if offer[2] == 0]
    assert alone == together


def test_offers_come_in_order_and_by_share():
    offers = list_offers(1)
    assert [offer[0] for offer in offers] == list(range(len(offers)))
    assert [offer[1] for offer in offers] == sorted(offer[1] for offer in offers)
    assert sum(offer[2] == 2 for offer in offers) / len(offers) == pytest.approx(0.25, abs=0.05)


def test_uniform_requests_are_alike():
    sample = lengths.UNIFORM.open(random.Random(1))
    assert {(size.prompt_tokens, size.output_tokens) for size in (sample() for _ in range(50))} == {(16, 64)}


def test_a_bound_is_never_below_what_is_used():
    sample = lengths.MIXED.open(random.Random(1))
    sizes = [sample() for _ in range(2000)]
    assert all(size.max_output_tokens is None or size.max_output_tokens >= size.output_tokens for size in sizes)
    assert max(size.prompt_tokens for size in sizes) > 60_000


def test_sessions_grow_and_share_their_prefix():
    sample = lengths.Agentic(sessions=1, turns_max=4).open(random.Random(1))
    before = sample()
    for _ in range(8):
        after = sample()
        if after.session == before.session:
            assert after.prompt_tokens > before.prompt_tokens
            assert after.hashes[: len(before.hashes)] == before.hashes
            assert 0 < after.cached_tokens <= before.prompt_tokens + before.output_tokens
        else:
            shared = [a == b for a, b in zip(after.hashes, before.hashes, strict=False)]
            assert shared.count(True) == 32  # the system prompt
        before = after


def test_agentic_requests_read_much_and_write_little():
    mean = lengths.compute_mean(lengths.AGENTIC)
    assert 100 < mean.prompt_tokens / mean.output_tokens < 170
    assert mean.uncached_tokens < 0.2 * mean.prompt_tokens


def test_a_missing_folder_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("SLUICE_TRACES", str(tmp_path / "nothing"))
    traces.load_trace.cache_clear()
    with pytest.raises(traces.TraceMissingError, match="SLUICE_TRACES"):
        traces.load_trace("mooncake")
    monkeypatch.setenv("SLUICE_TRACES", str(tmp_path))
    with pytest.raises(traces.TraceMissingError, match="does not exist"):
        traces.load_trace("mooncake")


def test_traces_are_read_from_any_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SLUICE_TRACES", str(tmp_path))
    traces.load_trace.cache_clear()
    (tmp_path / traces.FILES["azure-conv"]).write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:48.6805900,9,0\n"
    )
    (tmp_path / traces.FILES["mooncake"]).write_text(
        '{"timestamp": 500, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}\n'
    )
    first, second = traces.load_trace("azure-conv")
    assert (first.at_s, first.prompt_tokens, first.output_tokens) == (0.0, 374, 44)
    assert (second.at_s, second.output_tokens) == (2.0, 1)
    (row,) = traces.load_trace("mooncake")
    assert row.hashes == (28, 29, 30, 31, 32, 33, 34, 35)
    assert len(draw(TraceProcess("azure-conv"), rate=2.0, until_s=10.0)) == 20
    assert draw(TraceProcess("azure-conv", 0.5), rate=2.0, until_s=1.0) == [0.0, 0.5]
    sample = lengths.TraceSizes("azure-conv", 0.5).open(random.Random(1))
    assert [sample().prompt_tokens for _ in range(3)] == [9, 374, 9]
    sample = lengths.TraceSizes("mooncake").open(random.Random(1))
    assert [sample().cached_tokens for _ in range(2)] == [0, 1024]
    traces.load_trace.cache_clear()


@needs_traces
@pytest.mark.parametrize(
    ("name", "rows", "prompt", "output"), [("azure-conv", 19_366, 1155, 211), ("azure-code", 8_819, 2048, 28)]
)
def test_public_traces_have_their_published_means(name, rows, prompt, output):
    trace = traces.load_trace(name)
    assert len(trace) == rows
    assert statistics.fmean(row.prompt_tokens for row in trace) == pytest.approx(prompt, rel=0.01)
    assert statistics.fmean(row.output_tokens for row in trace) == pytest.approx(output, rel=0.01)


@needs_traces
def test_a_replayed_trace_is_scaled_to_the_rate():
    moments = draw(TraceProcess("azure-code"), rate=100.0, until_s=300.0)
    assert len(moments) / 300.0 == pytest.approx(100.0, rel=0.25)
    assert compute_cv(moments) > 5.0


def test_quick_scenarios_keep_their_named_moments():
    assert shorten(SCENARIOS["death"]).duration_s == SCENARIOS["death"].duration_s
    assert shorten(SCENARIOS["stale"]).duration_s == SCENARIOS["stale"].duration_s
    assert shorten(SCENARIOS["mixed"]).duration_s < SCENARIOS["mixed"].duration_s
    for scenario in SCENARIOS.values():
        assert sum(tenant.share for tenant in scenario.tenants) > 0.5
        assert all(scenario.find_tier(tenant.tier) for tenant in scenario.tenants)
        assert all(fault.at_s < scenario.until_s for fault in scenario.faults)
