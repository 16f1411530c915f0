"""Judges one settled request: met, missed or excluded, why, through whose fault, and what each SLI counts it as.

The table of statuses is in the fault of each :class:`~service.domain.outcome.Outcome`: what the client caused is
excluded, what we caused or had no capacity for is bad. A refusal within the contract is bad for the first token too: an
SLA that is met by refusing whatever would be late is worthless.

Trade-offs: a client that leaves before its first token is excluded even where the token was late already; its stamps
are in the record for whoever wants to look.
"""

from enum import Enum
from typing import Protocol

from service.domain.kind import GENERATING_KINDS
from service.domain.mark import Mark
from service.domain.outcome import Fault, Outcome
from service.domain.tier import Tier
from service.domain.value import value

BYTES_PER_TOKEN = 3.2
"""Bytes of a request body per prompt token where the worker told no usage: the estimator's figure before it has learned
(a guess between English text and code; measured nowhere)."""


class Standing(Enum):
    """What a request is in the record."""

    MET = "met"
    MISSED = "missed"
    EXCLUDED = "excluded"

    def __init__(self, label: str) -> None:
        self.label = label


class Result(Enum):
    """What a request is for one SLI; ``letter`` is how the ledger writes it."""

    GOOD = "good"
    BAD = "bad"
    EXCLUDED = "excluded"
    NOT_APPLICABLE = "not_applicable"

    def __init__(self, label: str) -> None:
        self.label = label
        self.letter = {"excluded": "x", "not_applicable": "-"}.get(label, label[0])


class Reason(Enum):
    """Why a request was missed or excluded, where its outcome does not say it."""

    NONE = ""
    LATE = "late"
    """The first token came after its target."""
    SLOW = "slow"
    """The first token was in time, those that followed were too slow."""
    SYNTHETIC = "synthetic"
    """Sent by the prober."""
    MAINTENANCE = "maintenance"
    """Within an announced window."""
    RAMP = "ramp"
    """The tenant grew faster than its contract allows."""
    EXCESS = "excess"
    """Above the contract: nothing is promised of its speed."""
    BEST_EFFORT = "best_effort"
    """There was no capacity for traffic that is promised none."""


@value
class Verdict:
    """``reason`` is a :class:`Reason` or the label of the outcome. ``met_all`` is the SLI ``all``: goodput.

    ``standing`` follows ``met_all``: good is met, bad is missed, excluded is excluded.
    """

    standing: Standing
    reason: str
    fault: Fault
    availability: Result
    ttft: Result
    tpot: Result
    met_all: Result


class Judged(Protocol):
    """What is read of a settled request; see ``runtime.account.Settlement``."""

    outcome: Outcome | None
    kind: str
    stream: bool
    prompt_bytes: int
    arrived_at: float
    first_token_at: float | None
    last_token_at: float | None
    prompt_tokens: int | None
    output_tokens: int | None
    output_estimated: bool
    marks: frozenset[Mark]


_GOOD, _BAD, _EXCLUDED, _NONE = Result.GOOD, Result.BAD, Result.EXCLUDED, Result.NOT_APPLICABLE
_COMPLETED = Outcome.COMPLETED
_EXEMPTING = frozenset((Mark.SYNTHETIC, Mark.MAINTENANCE, Mark.RAMP, Mark.EXCESS))

_EXCUSES = (
    (Mark.SYNTHETIC, Reason.SYNTHETIC),
    (Mark.MAINTENANCE, Reason.MAINTENANCE),
    (Mark.RAMP, Reason.RAMP),
)

MET = Verdict(Standing.MET, "", Fault.NONE, _GOOD, _GOOD, _GOOD, _GOOD)
"""The usual verdict of a stream; verdicts are values and this one is shared."""


def judge(settled: Judged, tier: Tier | None) -> Verdict:
    """The verdict on a request that has ended, against what ``tier`` promises.

    ``tier`` is the one it was served in; ``None`` where nobody knew whose request it was. A request that has no
    outcome, because the gateway died with it, counts as :attr:`Outcome.GATEWAY_FAULT`.
    """
    outcome = settled.outcome
    if settled.marks and settled.marks & _EXEMPTING:
        return _judge_marked(settled)
    if outcome is _COMPLETED:
        return _judge_completed(judge_ttft(settled, tier), judge_tpot(settled, tier))
    outcome = outcome or Outcome.GATEWAY_FAULT
    fault = outcome.fault
    if fault is Fault.CLIENT:
        return _exclude(outcome.label, fault)
    if fault is Fault.CAPACITY and tier is not None and tier.best_effort:
        return _exclude(Reason.BEST_EFFORT.value, fault)
    ttft, tpot = judge_ttft(settled, tier), judge_tpot(settled, tier)
    return Verdict(Standing.MISSED, outcome.label, fault, _BAD, ttft, tpot, _BAD)


def choose_ttft(tier: Tier | None, prompt_tokens: int) -> tuple[int, float] | None:
    """The size class of a prompt by its upper edge in tokens, the first that fits, and the seconds promised until its
    first token; ``None`` where nothing is promised, be it for prompts above the last edge."""
    if tier is not None:
        for promise in tier.ttft_targets_s:
            if prompt_tokens <= promise[0]:
                return promise
    return None


def count_prompt(settled: Judged) -> int:
    """Prompt tokens by the worker's usage, else estimated from the bytes of the body."""
    tokens = settled.prompt_tokens
    return int(settled.prompt_bytes / BYTES_PER_TOKEN) + 1 if tokens is None or tokens < 0 else tokens


def judge_ttft(settled: Judged, tier: Tier | None) -> Result:
    """Whether the first token came in time. Only streams show one; one that never came, through our fault, is bad."""
    if tier is None or not tier.ttft_targets_s or not settled.stream or settled.kind not in GENERATING_KINDS:
        return _NONE
    promise = choose_ttft(tier, count_prompt(settled))
    if promise is None:
        return _NONE
    first_at = settled.first_token_at
    if first_at is None:
        return _NONE if settled.outcome is _COMPLETED else _BAD
    return _GOOD if first_at - settled.arrived_at <= promise[1] else _BAD


def judge_tpot(settled: Judged, tier: Tier | None) -> Result:
    """Whether the mean time per output token after the first was kept. Needs a stream of two tokens by usage: counted
    events are a lower bound of tokens, and would be judged too hard."""
    tokens, first_at, last_at = settled.output_tokens, settled.first_token_at, settled.last_token_at
    if tier is None or tier.tpot_target_s is None or not settled.stream or settled.kind not in GENERATING_KINDS:
        return _NONE
    if first_at is None or last_at is None or tokens is None or tokens < 2 or settled.output_estimated:
        return _NONE
    return _GOOD if last_at - first_at <= tier.tpot_target_s * (tokens - 1) else _BAD


def _judge_completed(ttft: Result, tpot: Result) -> Verdict:
    if ttft is _BAD:
        return Verdict(Standing.MISSED, Reason.LATE.value, Fault.US, _GOOD, ttft, tpot, _BAD)
    if tpot is _BAD:
        return Verdict(Standing.MISSED, Reason.SLOW.value, Fault.US, _GOOD, ttft, tpot, _BAD)
    if ttft is _GOOD and tpot is _GOOD:
        return MET
    return Verdict(Standing.MET, "", Fault.NONE, _GOOD, ttft, tpot, _GOOD)


def _judge_marked(settled: Judged) -> Verdict:
    """Traffic to which the contract does not apply as a whole. What is above the contract is promised no speed, and may
    be refused; it is still our fault if it breaks."""
    outcome, marks = settled.outcome or Outcome.GATEWAY_FAULT, settled.marks
    fault = outcome.fault
    for mark, reason in _EXCUSES:
        if mark in marks:
            return _exclude(reason.value, fault)
    if fault is Fault.CLIENT:
        return _exclude(outcome.label, fault)
    if fault is Fault.US:
        return Verdict(Standing.MISSED, outcome.label, fault, _BAD, _EXCLUDED, _EXCLUDED, _BAD)
    availability = _GOOD if outcome is _COMPLETED else _EXCLUDED
    return Verdict(Standing.EXCLUDED, Reason.EXCESS.value, fault, availability, _EXCLUDED, _EXCLUDED, _EXCLUDED)


def _exclude(reason: str, fault: Fault) -> Verdict:
    return Verdict(Standing.EXCLUDED, reason, fault, _EXCLUDED, _EXCLUDED, _EXCLUDED, _EXCLUDED)
