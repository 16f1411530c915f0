"""The row that no gateway can beat."""

import pytest

from loadtests.live.ideal import ANCHOR_RATIO, compute_ideal, compute_mix_peak, compute_peak

PEAKS = {"hi": 51.0, "lo": 51.0}


@pytest.mark.parametrize(
    ("load", "hi", "lo", "goodput"),
    [(1, 1.0, 1.0, 39.0), (2, 1.0, 0.505, 51.0), (3, 1.0, 0.194, 51.0), (5, 0.872, 0.0, 51.0)],
)
def test_the_anchors_row(load, hi, lo, goodput):
    ideal = compute_ideal({"hi": 0.3 * 39 * load, "lo": 0.7 * 39 * load}, PEAKS)
    assert ideal.attainment["hi"] == pytest.approx(hi, abs=0.005)
    assert ideal.attainment["lo"] == pytest.approx(lo, abs=0.005)
    assert ideal.goodput_rps == pytest.approx(goodput)


def test_dearer_requests_take_more_of_what_is_left():
    ideal = compute_ideal({"hi": 5.0, "lo": 10.0}, {"hi": 10.0, "lo": 4.0})
    assert ideal.attainment == {"hi": 1.0, "lo": pytest.approx(0.2)}


def test_nothing_offered_is_all_served():
    assert compute_ideal({"hi": 0.0}, {"hi": 1.0}).attainment == {"hi": 1.0}


def test_peak_of_a_mix_and_of_a_ramp():
    assert compute_mix_peak({"hi": 0.5, "lo": 0.5}, {"hi": 10.0, "lo": 2.5}) == pytest.approx(4.0)
    assert compute_peak([{"goodput_rps": 3.0}, {"goodput_rps": 7.0}, {"goodput_rps": 5.0}]) == 7.0
    assert pytest.approx(0.7647, abs=1e-4) == ANCHOR_RATIO
