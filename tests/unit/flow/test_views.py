"""What the core shows of itself."""

import random

from service.domain.event import ReportDue
from service.flow.config import FlowConfig
from service.flow.controller import FlowController
from tests.support.flow import build_request


def test_before_a_report_is_due_there_is_none_to_read():
    controller = FlowController(FlowConfig(), random.Random(1))
    assert controller.report(0.0) is None
    controller.handle(ReportDue("me"), 1.0)
    report = controller.report(1.0)
    assert report is not None
    assert report.replica_id == "me"


def test_asking_what_a_request_will_take_changes_nothing():
    controller = FlowController(FlowConfig(), random.Random(1))
    request = build_request("r", max_output_tokens=7)
    assert controller.foresee(request, 0.9) == controller.foresee(request, 0.9)
    assert controller.foresee(request, 0.9).output_tokens == 7
