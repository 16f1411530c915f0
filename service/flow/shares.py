"""Divides every worker's permits between the gateways that serve it: the same reports give the same division anywhere.

Pool-wide each gateway gets a foot in the door, then what its bands could use, the dearest band of all gateways first,
then an equal part of what is idle. The fractions that come of this are rounded worker by worker; what rounding took
from a gateway on one worker is made good on the next. Where a gateway still holds more than it is entitled to, the
others wait for it, so that what is held and what may be taken never exceed what the worker carries.

*Trade-offs*: fractions are pool-wide, so a gateway whose clients all need one worker (responses stored there) has no
more of it than of others. Room that was lent for conversations that wait for one worker made no difference in the
simulator (``loadtests.sim.gateways --conversations``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from service.domain.replica import Certainty, ReplicaReport, WorkerUse
from service.domain.units import ReplicaId, WorkerId

_STICKY = 0.5
"""A permit that rounding gives to either of two gateways goes to the one that uses it, unless the other is owed half a
permit more: each permit that changes hands is idle for one or two reports."""

_FOOT = 1.0
"""Permits in the whole pool that every gateway may have though it asked for none: its first request should not have to
wait for the next report."""

_SCATTER = 0x9E3779B1
"""Knuth's multiplicative hash."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many requests of all gateways a worker carries."""

    permits: int
    certainty: Certainty


def find_capacities(reports: Sequence[ReplicaReport]) -> dict[WorkerId, Capacity]:
    """What each worker carries in the eyes of all: those who know more of it are believed. Of bounds that were met it
    is the lower median, of guesses the largest."""
    limits: dict[WorkerId, dict[Certainty, list[int]]] = {}
    for report in reports:
        for use in report.workers:
            if use.limit:
                limits.setdefault(use.worker_id, {}).setdefault(use.certainty, []).append(use.limit)
    capacities = {}
    for worker_id in sorted(limits):
        certainty = max(limits[worker_id])
        values = sorted(limits[worker_id][certainty])
        found = certainty is Certainty.FOUND
        capacities[worker_id] = Capacity(values[(len(values) - 1) // 2] if found else values[-1], certainty)
    return capacities


def divide(
    reports: Sequence[ReplicaReport], capacities: Mapping[WorkerId, Capacity]
) -> dict[ReplicaId, dict[WorkerId, int]]:
    """How many requests each gateway may have on each worker."""
    reports = sorted(reports, key=lambda report: report.replica_id)
    weights = weigh(reports, float(sum(capacity.permits for capacity in capacities.values())))
    owed = dict.fromkeys(weights, 0.0)
    parts: dict[ReplicaId, dict[WorkerId, int]] = {report.replica_id: {} for report in reports}
    uses = {(report.replica_id, use.worker_id): use for report in reports for use in report.workers}
    for worker_id, capacity in capacities.items():
        there = {
            replica_id: use
            for replica_id in parts
            if (use := uses.get((replica_id, worker_id))) is not None and use.limit
        }
        entitled = _round(capacity.permits, worker_id, there, weights, owed)
        held = {replica_id: use.held for (replica_id, other), use in uses.items() if other == worker_id}
        for replica_id, permits in make_room(capacity.permits, entitled, held).items():
            parts[replica_id][worker_id] = permits
    return parts


def weigh(reports: Sequence[ReplicaReport], permits: float) -> dict[ReplicaId, float]:
    """The part of the pool's ``permits`` that each gateway is entitled to; they add up to ``permits``."""
    if not reports:
        return {}
    foot = min(_FOOT, permits / len(reports))
    given = {report.replica_id: foot for report in reports}
    left = permits - foot * len(reports)
    asked = [(report.replica_id, dict(report.demand)) for report in reports]
    feet = dict.fromkeys(given, foot)
    for band in sorted({band for _, demand in asked for band in demand}):
        wanted = {}
        for replica_id, demand in asked:
            want = max(demand.get(band, 0.0), 0.0)
            covered = min(want, feet[replica_id])  # the foot in the door counts towards the dearest demand
            feet[replica_id] -= covered
            wanted[replica_id] = want - covered
        total = sum(wanted.values())
        ratio = 1.0 if total <= left else left / total
        for replica_id, want in wanted.items():
            given[replica_id] += want * ratio
        left = max(left - total, 0.0)
    return {replica_id: permits_ + left / len(reports) for replica_id, permits_ in given.items()}


def _round(
    permits: int,
    worker_id: WorkerId,
    there: Mapping[ReplicaId, WorkerUse],
    weights: Mapping[ReplicaId, float],
    owed: dict[ReplicaId, float],
) -> dict[ReplicaId, int]:
    """Whole permits of one worker by weight; ``owed`` carries what rounding took from each to the next worker."""
    total = sum(weights[replica_id] for replica_id in there)
    due = {replica_id: permits * weights[replica_id] / total + owed[replica_id] for replica_id in there}
    whole = {replica_id: max(int(part), 0) for replica_id, part in due.items()}

    def rank(replica_id: ReplicaId) -> tuple[float, int]:
        sticky = _STICKY if there[replica_id].held > whole[replica_id] else 0.0
        return due[replica_id] - whole[replica_id] + sticky, score(replica_id, worker_id)

    left = permits - sum(whole.values())
    for turn, replica_id in enumerate(sorted(there, key=rank, reverse=True)):
        whole[replica_id] += max((left + len(there) - 1 - turn) // len(there), 0)
    for replica_id in sorted([one for one in there if whole[one]], key=rank)[: max(-left, 0)]:
        whole[replica_id] -= 1
    for replica_id, part in due.items():
        owed[replica_id] = min(max(part - whole[replica_id], -1.0), 1.0)
    return whole


def make_room(permits: int, entitled: Mapping[ReplicaId, int], held: Mapping[ReplicaId, int]) -> dict[ReplicaId, int]:
    """What each may have while some hold more than they are ``entitled`` to: the rest share what is free by what they
    lack, so that nobody's requests and everybody's permits together stay within ``permits``."""
    lacking = {replica_id: max(part - held.get(replica_id, 0), 0) for replica_id, part in entitled.items()}
    total = sum(lacking.values())
    free = max(permits - sum(held.values()), 0)
    if total <= free:
        return dict(entitled)
    parts = {}
    passed = given = 0
    for replica_id, part in entitled.items():
        passed += lacking[replica_id]
        more = free * passed // total - given  # whole numbers that add up to what is free
        given += more
        parts[replica_id] = part if not lacking[replica_id] else held.get(replica_id, 0) + more
    return parts


def divide_equally(permits: int, worker_id: WorkerId, replica_ids: Sequence[ReplicaId], own: ReplicaId) -> int:
    """The part of ``own`` when all have the same; the parts of all ``replica_ids`` add up to ``permits``."""
    count = len(replica_ids)
    order = sorted(replica_ids, key=lambda replica_id: (score(replica_id, worker_id), replica_id))
    return permits // count + (order.index(own) < permits % count)


def score(name: str, worker_id: str) -> int:
    """A number for the pair, the same on every gateway (rendezvous hashing, Thaler & Ravishankar 1998). A checksum
    alone would not do: it is linear, so whoever comes first for one name would come first for most."""
    return crc32(f"{name}\n{worker_id}".encode()) * _SCATTER & 0xFFFFFFFF


def bound_overshoot(permits: int, replicas: int, cut_off: int) -> int:
    """The most requests above ``permits`` that a worker may be given while ``cut_off`` of ``replicas`` gateways cannot
    reach the store and the others can, one lease after the contact was lost.

    Those who are cut off have each come down to an equal part of what the worker carries by the time the others count
    them out and divide all of it: cut_off * ceil(permits / replicas). Where nobody is cut off, or everybody is, the
    parts add up to ``permits``.
    """
    if not 0 < cut_off < replicas:
        return 0
    return cut_off * -(-permits // replicas)
