"""Whatever happens: counters never decrease, buckets are cumulative, every settled request is counted once."""

from hypothesis import given, settings
from hypothesis import strategies as st

from service.domain.command import Dispatch, Enqueue, Refuse, Revoke
from service.domain.event import AttemptFailed, FailureCause, Woken
from service.domain.outcome import Outcome
from service.telemetry.kinds import Kind
from service.telemetry.labels import KINDS
from service.telemetry.metrics import METRICS
from service.telemetry.recorder import Recorder
from tests.support.telemetry import TIERS, build_settlement, scrape

_moments = st.none() | st.floats(99.0, 5000.0)
_tokens = st.none() | st.integers(-5, 1_000_000)
_settlements = st.builds(
    build_settlement,
    kind=st.sampled_from([*KINDS, "unheard_of"]),
    tier=st.sampled_from([None, "unheard_of", *(tier.name for tier in TIERS)]),
    outcome=st.sampled_from(list(Outcome)),
    stream=st.booleans(),
    admitted_at=_moments,
    dispatched_at=_moments,
    first_token_at=_moments,
    last_token_at=_moments,
    prompt_tokens=_tokens,
    cached_tokens=_tokens,
    output_tokens=_tokens,
    output_estimated=st.booleans(),
)
_commands = st.sampled_from(
    [
        Dispatch("a", "w", 1),
        Dispatch("a", "w", 2),
        Enqueue("a", 1),
        Refuse("a", Outcome.EXPIRED),
        Revoke("a", Outcome.REVOKED),
    ]
)
_events = st.builds(AttemptFailed, st.just("a"), st.sampled_from(FailureCause)) | st.just(Woken())
_turns = st.tuples(_events, st.lists(_commands, max_size=3))
_STEADY = {metric.name for metric in METRICS if metric.kind is Kind.GAUGE}


def _check_buckets(samples):
    series = {}
    for (name, labels), value in samples.items():
        if name.endswith("_bucket"):
            rest = tuple(label for label in labels if label[0] != "le")
            series.setdefault((name.removesuffix("_bucket"), rest), []).append((float(dict(labels)["le"]), value))
    assert series
    for (name, labels), buckets in series.items():
        counts = [count for _, count in sorted(buckets)]
        assert counts == sorted(counts)
        assert counts[-1] == samples[name + "_count", labels]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(_settlements | _turns, max_size=12), min_size=1, max_size=4))
def test_the_fold_keeps_its_promises(scrapes):
    recorder = Recorder(TIERS)
    before = scrape(recorder)
    start = len(before)
    settled = 0
    for batch in scrapes:
        for happening in batch:
            if isinstance(happening, tuple):
                recorder.observe(0.0, *happening)
            else:
                recorder.settle(happening)
                settled += 1
        after = scrape(recorder)
        for key, value in before.items():
            if key[0] not in _STEADY:
                assert after[key] >= value, key
        _check_buckets(after)
        assert sum(value for key, value in after.items() if key[0] == "sluice_requests_total") == settled
        before = after
    assert len(before) - start <= (len(TIERS) + 1) * (len(KINDS) + 1) * len(Outcome)
