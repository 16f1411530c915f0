"""Percentiles, medians, ratios and tables of the load tests."""

import pytest

from loadtests.live.figures import (
    compute_difference,
    compute_median,
    compute_percentile,
    compute_ratio,
    compute_spread_ms,
    format_figure,
    format_markdown,
)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.25, 1.0), (0.26, 2.0), (0.5, 2.0), (0.99, 4.0), (1.0, 4.0)]
)
def test_percentile_is_the_nearest_rank(share, expected):
    assert compute_percentile([1.0, 2.0, 3.0, 4.0], share) == expected


def test_percentile_of_nothing_is_missing():
    assert compute_percentile([], 0.5) is None


def test_spread_is_in_milliseconds_and_needs_no_order():
    assert compute_spread_ms([0.003, 0.001, 0.002]) == {"p50": 2.0, "p90": 3.0, "p99": 3.0, "max": 3.0}


def test_spread_of_nothing_is_missing():
    assert set(compute_spread_ms([]).values()) == {None}


def test_median_leaves_out_what_was_not_measured():
    assert compute_median([None, 3.0, 1.0]) == 2.0
    assert compute_median([None]) is None


@pytest.mark.parametrize(("value", "reference"), [(None, 1.0), (1.0, None), (1.0, 0.0)])
def test_ratio_without_both_sides_is_missing(value, reference):
    assert compute_ratio(value, reference) is None


def test_ratio_and_difference():
    assert compute_ratio(30.0, 60.0) == 0.5
    assert compute_difference(3.0, 1.0) == 2.0
    assert compute_difference(None, 1.0) is None


def test_missing_figures_are_dashes_never_zeros():
    assert format_figure(None) == "-"
    assert format_figure(1234.56, 1, " MiB") == "1,234.6 MiB"


def test_markdown_is_aligned():
    assert format_markdown(["a", "figure"], [["long name", "1"], ["b", "23"]]).splitlines() == [
        "| a         | figure |",
        "|-----------|-------:|",
        "| long name |      1 |",
        "| b         |     23 |",
    ]
