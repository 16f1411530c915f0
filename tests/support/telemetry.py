"""What the tests of telemetry share: tiers, settled requests, a scrape read back, and two naive recorders.

The naive recorders are mutants: the cases D12 and D13 are checked against them too, and must fail there.
"""

from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from service.domain.outcome import Outcome
from service.domain.tier import Tier
from service.flow.stats import FlowStats, WorkerStats
from service.runtime.account import Settlement
from service.telemetry.budget import Budgets
from service.telemetry.exposition import Exposition
from service.telemetry.gauges import Snapshot
from service.telemetry.lag import LoopLag
from service.telemetry.recorder import Recorder

TIERS = (
    Tier("priority", 0, ttft_targets_s=((4096, 1.1), (32768, 3.0)), tpot_target_s=0.022, queue_ttl_s=7.0),
    Tier("default", 1, ttft_targets_s=((4096, 2.5),), tpot_target_s=0.05),
    Tier("flex", 2, best_effort=True),
)
NOTHING = FlowStats(0, 0, 0, False, None, ())


def build_settlement(kind="chat_completions", tier="default", outcome=Outcome.COMPLETED, **stamps):
    """A settled request; what is not said did not happen."""
    settlement = Settlement("request-1", kind, stamps.pop("arrived_at", 100.0))
    settlement.tier = tier
    settlement.outcome = outcome
    for name, stamp in stamps.items():
        assert hasattr(settlement, name), name
        setattr(settlement, name, stamp)
    return settlement


def build_stream(**changes):
    """A streamed request whose first token came after 2 s and its last after 5 s, 0.5 s of them in the queue."""
    stamps = {
        "stream": True, "admitted_at": 100.0005, "dispatched_at": 100.5005, "first_token_at": 102.0,
        "last_token_at": 105.0, "prompt_tokens": 1000, "cached_tokens": 400, "output_tokens": 101,
    }  # fmt: skip
    return build_settlement(**{**stamps, **changes})


def build_exposition(recorder=None, lag=None, snapshot=None):
    """An exposition with little in it."""
    state = snapshot or Snapshot(NOTHING)
    budgets = Budgets(TIERS, "model", 0.0)
    return Exposition(
        recorder or Recorder(TIERS), lag or LoopLag(), lambda: state, "0.1.0", budgets.families, budgets.misses
    )


def build_workers(count):
    """``count`` healthy workers."""
    return tuple(WorkerStats(f"worker-{number}", number, True, False, True, False) for number in range(count))


def read_samples(body):
    """Values by (name, labels) of a scrape in text format; each may be there once only."""
    samples = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples, key
            samples[key] = sample.value
    return samples


def scrape(recorder, **rest):
    """The figures of ``recorder`` by (name, labels), without those of the process."""
    body, _ = build_exposition(recorder, **rest).render(None)
    return {key: value for key, value in read_samples(body).items() if not key[0].startswith("process_")}


def value_of(samples, name, **labels):
    """One value; ``None`` if there is no such series."""
    return samples.get((name, tuple(sorted(labels.items()))))


class HeaderTimer:
    """Naive (D12): a middleware that stops its timer and reads the status when the response object is built."""

    def __init__(self):
        self.samples = {}

    def on_headers(self, settlement, headers_at, status):
        """The response object is there."""
        outcome = "completed" if status == 200 else "failed"
        length_s = headers_at - settlement.arrived_at
        for name in ("sluice_ttft_seconds", "sluice_e2e_seconds"):
            self._add(name + "_sum", length_s, tier=settlement.tier)
            self._add(name + "_count", 1, tier=settlement.tier)
        self._add("sluice_requests_total", 1, tier=settlement.tier, kind=settlement.kind, outcome=outcome)

    def _add(self, name, value, **labels):
        key = (name, tuple(sorted(labels.items())))
        self.samples[key] = self.samples.get(key, 0) + value


class TextLabels:
    """Naive (D13): a counter labelled by what the client wrote."""

    def __init__(self):
        self.counts = Counter()

    def settle(self, settlement):
        """Count it under path, tier and tenant as they came."""
        self.counts[settlement.kind, settlement.tier, settlement.tenant_id, settlement.outcome] += 1

    @property
    def series(self):
        """How many series there are."""
        return len(self.counts)
