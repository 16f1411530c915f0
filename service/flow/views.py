"""Answers what others ask the flow core: snapshots and forecasts, which change nothing."""

from service.domain.estimate import Estimate
from service.domain.replica import ReplicaReport
from service.domain.request import Request
from service.domain.units import WorkerId
from service.flow.leaving import choose_leaving
from service.flow.replicas import build_report
from service.flow.state import FlowState
from service.flow.stats import DemandStats, FlowStats, build_demand_stats, build_flow_stats


class FlowViews:
    """What a controller shows of its state."""

    _state: FlowState

    def stats(self, now: float) -> FlowStats:
        """Snapshot of queue, permits and workers; O(workers)."""
        return build_flow_stats(self._state, now)

    def demand(self) -> DemandStats:
        """What is asked of the pool; O(requests that wait or run)."""
        return build_demand_stats(self._state)

    def choose_leaving(self) -> WorkerId | None:
        """Which worker should go when there is one too many."""
        return choose_leaving(self._state)

    def report(self, now: float) -> ReplicaReport | None:
        """What other gateways should know; ``None`` before the first ``ReportDue``. O(workers)."""
        return build_report(self._state, now)

    def foresee(self, request: Request, level: float) -> Estimate:
        """What ``request`` will take at most, with so much certainty; asking changes nothing."""
        return self._state.estimator.foresee(request, level)
