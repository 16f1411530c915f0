"""Decides how much of each worker this gateway may use while others serve the same workers: no leader, no lock.

Theory. Each gateway publishes a report and reads the latest of the others, through a store in which what was written is
seen by whoever reads later. From these it divides every worker (``flow.shares``). A report carries *claims*: on each
worker, the permits that the gateway holds or may take before its next report. A permit more is taken only when a report
that claims it has been published, and only if the claims of all others, read after that, leave it free; a part that has
become smaller is given up at once, before that is published. Of two gateways that want the same permit, the one that
published later sees the other's claim: so permits add up to no more than the worker carries, however late reports are.

A report that has not changed for a lease counts no longer; a gateway whose own reports have not got through for as long
has come down to an equal part by then, and goes on with that. After a contact began a gateway takes no more than an
equal part for one lease, in which all others that live have told of themselves: a store that was restarted empty must
not look like a pool without others.

*Trade-offs*: a part grows two reports after the demand for it. Cut off for good, a gateway keeps its equal part though
the others count it out: the overshoot is ``shares.bound_overshoot``.
"""

from collections.abc import Sequence

from service.domain.event import ReplicasSeen, ReportDue
from service.domain.load import WorkerLoad
from service.domain.replica import Certainty, ReplicaReport, WorkerUse, find_place
from service.domain.units import ReplicaId, WorkerId
from service.flow.foreign import Foreign, count_own_promises, take_in
from service.flow.shares import divide, divide_equally, find_capacities
from service.flow.sharing import Peer, Sharing
from service.flow.state import FlowState
from service.flow.worker import WorkerState

_DECAY_FROM, _DECAY_TO = 0.5, 0.75
"""Parts of the lease after the last contact between which a part comes down to an equal one. The rest of the lease is
for the grain of reports, and for a loop that is late."""


_TOLD_TIMES = 3
"""Reports in which a prompt is told of."""

_SOMEBODY = ReplicaId("?")


def follow(state: FlowState, event: ReportDue | ReplicasSeen, now: float) -> None:
    """Let reports change how much of each worker this gateway may use; permits are to be sorted out after it."""
    if isinstance(event, ReportDue):
        sharing = state.sharing
        if sharing is None or sharing.replica_id != event.replica_id:
            sharing = state.sharing = Sharing(event.replica_id, now)
            state.ledger.gateways = state.config.sharing.replicas_assumed
        _prepare(state, sharing, now)
    elif state.sharing is not None and event.number == state.sharing.number:
        _adopt(state, state.sharing, event.reports, now)


def guess_others(state: FlowState, worker: WorkerState, load: WorkerLoad, now: float) -> None:
    """While the others cannot be asked, what a worker says of itself beyond this gateway's own is theirs."""
    sharing = state.sharing
    if sharing is None or not sharing.alone or load.running_requests is None:
        return
    count = max(load.running_requests + (load.waiting_requests or 0) - len(worker.held), 0)
    use = WorkerUse(worker.worker_id, 0, Certainty.NOTHING, 0, count, min(count, load.running_requests))
    foreign = sharing.foreign.setdefault(worker.worker_id, Foreign())
    take_in(worker, foreign, [(_SOMEBODY, use)] if count else [], now)


def build_report(state: FlowState, now: float) -> ReplicaReport | None:
    """What the others should know now; ``None`` before the first ``ReportDue``."""
    return None if state.sharing is None else _describe(state, state.sharing, now)


def _describe(state: FlowState, sharing: Sharing, now: float) -> ReplicaReport:
    demand = {band: rate for band, rate in state.offered.rates(now).items() if rate > 0.01}
    for band, queue in state.room.all_bands():
        demand[band] = demand.get(band, 0.0) + queue.size
    cap = state.config.requests_per_worker
    leaving = state.draining and not state.room.size
    workers = []
    for place, worker in _list_places(state).items():
        foreign = sharing.foreign.get(worker.worker_id) or Foreign()
        usable = worker.healthy and not worker.draining and not leaving
        own = count_own_promises(worker, foreign)
        workers.append(
            WorkerUse(
                place,
                min(worker.limit.limit, cap) if usable else 0,
                worker.limit.certainty,
                max(sharing.claims.get(place, 0), len(worker.held)),
                len(worker.held),
                worker.decoding - foreign.decoding,
                worker.backlog_tokens - foreign.backlog_tokens,
                worker.sent_tokens,
                worker.widened,
                tuple(sorted(own.items())),
                worker.slack.read_s(now) if own else None,
            )
        )
    return ReplicaReport(
        sharing.replica_id, sharing.number, tuple(sorted(demand.items())), tuple(workers), _list_read(state, sharing)
    )


def _list_read(state: FlowState, sharing: Sharing) -> tuple[tuple[int, int], ...]:
    """Prompts sent since a few reports ago: a report may be overwritten before all have seen it."""
    while sharing.read and sharing.read[0][0] < sharing.number - _TOLD_TIMES:
        sharing.read.popleft()
    positions = {worker.worker_id: position for position, worker in enumerate(_list_places(state).values())}
    return tuple((mark, positions[name]) for _, mark, name in sharing.read if name in positions)


def _learn_read(state: FlowState, report: ReplicaReport) -> None:
    """Where others have sent prompts."""
    places = _list_places(state)
    workers = [places.get(use.worker_id) for use in report.workers]
    for mark, position in report.read:
        worker = workers[position] if position < len(workers) else None
        if worker is not None:
            state.prefixes.remember((mark,), worker.cache)


def _prepare(state: FlowState, sharing: Sharing, now: float) -> None:
    """Before a report: forget who has been silent, claim what would be right, give up what is too much."""
    lease_s = state.config.sharing.lease_s
    silent = [replica_id for replica_id, peer in sharing.peers.items() if now - peer.seen_at >= lease_s]
    for replica_id in silent:
        del sharing.peers[replica_id]
    sharing.number += 1
    sharing.sent_at = now
    parts = _divide(state, sharing, now)
    since_s = None if sharing.contact_at is None else now - sharing.contact_at
    heard = since_s is not None and since_s < _DECAY_FROM * lease_s
    waited = now - sharing.born_at >= lease_s
    for place, worker in _list_places(state).items():
        share, equal = worker.share or 0, _find_equal(state, sharing, place, worker)
        part = parts.get(place, 0) if heard else equal
        if since_s is None:  # nobody was ever heard of: not before it is clear that the store is away
            worker.share = equal if waited else 0
        elif heard:
            worker.share = min(share, part)
        else:
            worker.share = min(share, _come_down(sharing.at_contact.get(place, 0), equal, since_s / lease_s))
        sharing.claims[place] = max(part, worker.share, len(worker.held))
    sharing.alone = since_s is None or since_s >= lease_s
    if silent:
        _count_others(state, sharing, now)


def _find_equal(state: FlowState, sharing: Sharing, place: WorkerId, worker: WorkerState) -> int:
    """The part of this gateway if all that were known at the last contact have the same."""
    permits = min(worker.limit.limit, state.config.requests_per_worker)
    if not sharing.known:
        return max(permits // state.config.sharing.replicas_assumed, 1)
    capacity = sharing.capacities.get(place)
    permits = permits if capacity is None else min(permits, capacity.permits)
    return divide_equally(permits, place, sharing.known, sharing.replica_id)


def _come_down(last: int, equal: int, silent: float) -> int:
    """What is left of a share of ``last`` after a silence of so many leases."""
    gone = min((silent - _DECAY_FROM) / (_DECAY_TO - _DECAY_FROM), 1.0)
    return last if equal >= last else int(last + gone * (equal - last))


def _adopt(state: FlowState, sharing: Sharing, reports: Sequence[ReplicaReport], now: float) -> None:
    """A report got through, and the others' are here."""
    lease_s = state.config.sharing.lease_s
    if sharing.contact_at is None or sharing.sent_at - sharing.contact_at >= _DECAY_FROM * lease_s:
        sharing.began_at = sharing.sent_at
    sharing.contact_at = sharing.sent_at
    for report in reports:
        other = report.replica_id
        if other != sharing.replica_id and sharing.heard.get(other, -1) < report.number:
            sharing.peers[other] = Peer(report, now)
            _learn_read(state, report)
    sharing.heard = {report.replica_id: report.number for report in reports}
    sharing.alone = False
    sharing.known = (sharing.replica_id, *sharing.peers)
    state.ledger.gateways = len(sharing.known)
    _count_others(state, sharing, now)
    parts = _divide(state, sharing, now)
    claimed: dict[WorkerId, int] = {}
    for peer in sharing.peers.values():
        for use in peer.report.workers:
            claimed[use.worker_id] = claimed.get(use.worker_id, 0) + max(use.claim, use.held)
    settling = sharing.began_at is not None and now - sharing.began_at < lease_s
    places = _list_places(state)
    for place, worker in places.items():
        capacity = sharing.capacities.get(place)
        if capacity is None:  # nobody can use it
            worker.share = 0
            continue
        free = capacity.permits - claimed.get(place, 0)
        if settling:
            count = max(len(sharing.known), state.config.sharing.replicas_assumed)
            free = min(free, max(capacity.permits // count, 1))
        part = min(parts.get(place, 0), sharing.claims.get(place, 0))
        worker.share = min(part, max(worker.share or 0, free))
        worker.limit.adopt(capacity.permits, capacity.certainty)
    sharing.at_contact = {place: worker.share or 0 for place, worker in places.items()}


def _divide(state: FlowState, sharing: Sharing, now: float) -> dict[WorkerId, int]:
    reports = [_describe(state, sharing, now), *(peer.report for peer in sharing.peers.values())]
    sharing.capacities = find_capacities(reports)
    return divide(reports, sharing.capacities).get(sharing.replica_id, {})


def _count_others(state: FlowState, sharing: Sharing, now: float) -> None:
    told: dict[WorkerId, list[tuple[ReplicaId, WorkerUse]]] = {}
    for replica_id, peer in sharing.peers.items():
        for use in peer.report.workers:
            told.setdefault(use.worker_id, []).append((replica_id, use))
    before, sharing.foreign = sharing.foreign, {}
    for place, worker in _list_places(state).items():
        foreign = sharing.foreign[worker.worker_id] = before.get(worker.worker_id) or Foreign()
        take_in(worker, foreign, told.get(place, []), now)


def _list_places(state: FlowState) -> dict[WorkerId, WorkerState]:
    """The workers by place; where one has left and another has come, the one that is listed."""
    workers = state.ledger.workers.values()
    places = {find_place(worker.worker_id): worker for worker in workers if not worker.listed}
    return places | {find_place(worker.worker_id): worker for worker in workers if worker.listed}
