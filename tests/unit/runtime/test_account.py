"""Settling: what circumstances are noted before the verdict."""

import pytest

from service.domain.maintenance import MaintenanceWindow
from service.domain.mark import Mark
from service.domain.outcome import Outcome
from service.runtime.account import Accounts, Settlement
from service.slo.verdict import Standing

OFFSET_S = 1_000_000.0


@pytest.mark.parametrize(
    ("arrived_at", "excluded"), [(99.9, False), (100.0, True), (199.9, True), (200.0, False), (350.0, True)]
)
def test_what_arrives_in_announced_maintenance_is_excluded_however_it_ends(arrived_at, excluded):
    accounts = Accounts([])
    accounts.wall_offset_s = OFFSET_S
    accounts.maintenance = (
        MaintenanceWindow(OFFSET_S + 100.0, OFFSET_S + 200.0, "kernel"),
        MaintenanceWindow(OFFSET_S + 300.0, OFFSET_S + 400.0, "again"),
    )
    settlement = Settlement("r", "chat_completions", arrived_at)
    settlement.marks = frozenset((Mark.DOWNGRADED,))
    accounts.settle(settlement, Outcome.WORKER_FAILED, 999.0)
    assert (settlement.verdict.standing is Standing.EXCLUDED) is excluded
    assert (settlement.verdict.reason == "maintenance") is excluded
    assert Mark.DOWNGRADED in settlement.marks


def test_without_windows_nothing_is():
    assert not Accounts([]).is_maintained(5.0)
