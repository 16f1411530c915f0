"""Decides whether a worker may be given work, by what comes out of it rather than by what its port says.

vLLM's ``/health`` is 503 only when the engine is known to be dead; a hung engine answers 200, and a merely saturated
server answers late. So ``/health`` can condemn (503, refused) but neither its 200 nor its slowness decides anything
while there is work: then tokens do.

Trade-offs: with several engines behind one address (data parallel) one frozen engine hides behind the others' tokens.
Cache growth counts as progress, so an engine that only ever preempts and refills is left to the relay's own limits.
A worker that shuts its listener while it still finishes streams is ejected at once and its streams are taken back,
unless the platform has said that it is about to end it: then they go on for as long as bytes come.
"""

from dataclasses import dataclass
from enum import Enum

from service.workers.evidence import Answer, Evidence


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """When a worker is judged unhealthy, and when well again.

    ``required_model``: the model that must be served; ``None`` takes any.
    ``stall_after_s``: work without any progress for so long is a stall. 9 s, and up to one probe until the work is
    seen, make 10 s: hundreds of decode steps, and a prefill shows as cache growth with every chunk (well under 1 s).
    ``blind_stall_after_s``: the same when the worker's counters cannot be read, so that only bytes tell. A guess: above
    the TTFT of long prompts, since a prefill is then invisible.
    ``failures_to_eject``: scrapes that fail in a row, with nothing else answered, before an idle worker is ejected.
    ``stale_after_s``: age from which a load is called stale.
    ``recovery_probes``: good answers in a row before an ejected worker is used again.
    ``confirms_profile``: a worker is used only when its page has shown that it runs what its profile asks.
    ``proves_first``: a worker is used only when tokens have come out of it, somebody's or those of a probe.
    ``longest_tick_s``: bound of one step of starvation, see :func:`service.workers.evidence.observe_tick`.
    """

    required_model: str | None = None
    stall_after_s: float = 9.0
    blind_stall_after_s: float = 90.0
    failures_to_eject: int = 3
    stale_after_s: float = 5.0
    recovery_probes: int = 2
    confirms_profile: bool = False
    proves_first: bool = False
    longest_tick_s: float = 3.0


class Reason(Enum):
    """Why a worker is judged as it is; the first three are healthy."""

    GOOD = "good"
    STALE = "stale"
    """Usable, but its load is old or unknown: only the gateway's own counts tell how full it is."""

    FINISHING = "finishing"
    """It is about to end and takes nobody any more, but what it has goes on."""

    UNPROVEN = "unproven"
    """Too little is known of it yet."""
    REFUSED = "refused"
    ENGINE_DEAD = "engine_dead"
    WRONG_MODEL = "wrong_model"
    OFF_PROFILE = "off_profile"
    """It runs other than its profile asks: slower, or with less room, than what was promised for it."""
    STALLED = "stalled"
    """It has work, and nothing comes of it."""
    SILENT = "silent"
    """It answers nothing at all."""
    RECOVERING = "recovering"
    """Nothing speaks against it any more, but not for long enough."""

    @property
    def healthy(self) -> bool:
        """Whether a worker judged so may be given work."""
        return self in (Reason.GOOD, Reason.STALE, Reason.FINISHING)


@dataclass(frozen=True, slots=True)
class Health:
    """The judgement in force. ``since`` is when ``healthy`` last changed."""

    reason: Reason
    since: float
    ever_healthy: bool = False

    @property
    def healthy(self) -> bool:
        """Whether it may be given work."""
        return self.reason.healthy


def judge(evidence: Evidence, config: HealthConfig, now: float) -> Reason:
    """What ``evidence`` says by itself, without regard to earlier judgements."""
    if Answer.REFUSED in (evidence.scrape, evidence.health):
        return Reason.FINISHING if _is_finishing(evidence, config) else Reason.REFUSED
    if evidence.health is Answer.DEAD:
        return Reason.ENGINE_DEAD
    if serves(evidence, config) is False:
        return Reason.WRONG_MODEL
    if config.confirms_profile and evidence.deviations:
        return Reason.OFF_PROFILE
    if evidence.starved_s >= stall_limit_s(evidence, config, now):
        return Reason.STALLED
    if evidence.misses >= config.failures_to_eject:
        speaking = evidence.busy and evidence.starved_s < config.stall_after_s
        if not speaking:
            return Reason.SILENT
    if serves(evidence, config) is None or not _is_known(evidence, config):
        return Reason.UNPROVEN
    return Reason.GOOD if is_fresh(evidence, config, now) else Reason.STALE


def settle(before: Health | None, evidence: Evidence, config: HealthConfig, now: float) -> Health:
    """The judgement from now on: an ejection takes effect at once, a recovery needs ``recovery_probes``.

    A worker that was never healthy needs only one good verdict, so that a fresh pool is ready at once.
    """
    if before is None:
        before = Health(Reason.UNPROVEN, now)
    reason = judge(evidence, config, now)
    if reason.healthy and not before.healthy and before.ever_healthy and not _has_recovered(evidence, config):
        reason = Reason.RECOVERING
    since = before.since if reason.healthy == before.healthy else now
    return Health(reason, since, before.ever_healthy or reason.healthy)


def serves(evidence: Evidence, config: HealthConfig) -> bool | None:
    """Whether the required model is served; ``None`` while that is unknown."""
    if config.required_model is None:
        return True
    if evidence.served_models is None:
        return None
    return config.required_model in evidence.served_models


def is_fresh(evidence: Evidence, config: HealthConfig, now: float) -> bool:
    """Whether the worker's own figures are recent enough to be used."""
    return evidence.load is not None and evidence.load.age_s(now) <= config.stale_after_s


def stall_limit_s(evidence: Evidence, config: HealthConfig, now: float) -> float:
    """How long work may go without progress: longer when the counters cannot be seen."""
    load = evidence.load
    sees_tokens = load is not None and load.progress_tokens is not None and is_fresh(evidence, config, now)
    return config.stall_after_s if sees_tokens else config.blind_stall_after_s


def wants_token(evidence: Evidence, health: Health, config: HealthConfig, now: float) -> bool:
    """Whether a one-token request would settle something: a stall is near or in force, or nothing else proves life."""
    if Answer.REFUSED in (evidence.scrape, evidence.health) or evidence.health is Answer.DEAD:
        return False
    if evidence.starved_s >= stall_limit_s(evidence, config, now) / 2:
        return True
    if config.proves_first and evidence.proven_at is None and evidence.greeted and not health.ever_healthy:
        return True
    unseen = evidence.load is None and evidence.scrape_failures > 0
    return not health.healthy and evidence.health is Answer.OK and unseen and evidence.proven_at is None


def _is_known(evidence: Evidence, config: HealthConfig) -> bool:
    """Enough to begin with: it worked before our eyes, or both its page and its ``/health`` were good."""
    if config.confirms_profile and evidence.deviations is None:
        return False
    if config.proves_first:
        return evidence.proven_at is not None
    return evidence.proven_at is not None or (evidence.load is not None and evidence.greeted)


def _is_finishing(evidence: Evidence, config: HealthConfig) -> bool:
    """Who gets no new work anyway may shut its door before its last answers are out."""
    return evidence.leaving and evidence.in_flight > 0 and evidence.starved_s < config.stall_after_s


def _has_recovered(evidence: Evidence, config: HealthConfig) -> bool:
    return evidence.misses == 0 and evidence.good_probes >= config.recovery_probes
