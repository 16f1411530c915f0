"""Work that arrives, by band."""

import pytest

from service.flow.offered import OfferedWork


def test_a_steady_stream_is_measured():
    offered = OfferedWork()
    for number in range(4000):
        offered.observe(1, 2.0, 0.5, number / 100.0)  # 100 a second, 2 permit-seconds each
    assert offered.rate_above(2, 40.0) == pytest.approx(200.0, rel=0.05)
    assert offered.rate_above(1, 40.0) == 0.0


def test_it_halves_in_five_seconds():
    offered = OfferedWork()
    offered.observe(0, 10.0, 1.0, 0.0)
    assert offered.rate_above(1, 5.0) == pytest.approx(offered.rate_above(1, 0.0) / 2.0)
