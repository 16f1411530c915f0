"""The forecast follows a trend, remembers earlier periods, and says how far it was off."""

import math

import pytest

from service.slo.forecast import DAY_S, Forecast, ForecastConfig

MINUTE = 60.0


def feed(forecast: Forecast, values: list[float], begin: float = 0.0) -> float:
    """One value a minute; the moment after the last."""
    for index, value in enumerate(values):
        forecast.observe(begin + index * MINUTE, value)
    return begin + len(values) * MINUTE


def test_nothing_is_foreseen_before_a_cell_is_over() -> None:
    forecast = Forecast(ForecastConfig(), 600.0)
    assert forecast.foresee() is None
    assert forecast.level is None
    forecast.observe(0.0, 4.0)
    forecast.observe(30.0, 6.0)
    assert forecast.foresee() is None
    forecast.observe(60.0, 100.0)
    foreseen = forecast.foresee()
    assert foreseen is not None
    assert foreseen.value == 5.0
    assert forecast.level == 5.0


def test_what_stays_the_same_is_foreseen_exactly() -> None:
    forecast = Forecast(ForecastConfig(), 600.0)
    feed(forecast, [3.0] * 60)
    foreseen = forecast.foresee()
    assert foreseen is not None
    assert (foreseen.value, foreseen.sigma, foreseen.by_pattern) == (3.0, 0.0, False)
    off, came, count = forecast.absolute_errors
    assert (off, came) == (0.0, 3.0 * count)
    assert count > 40


def test_a_rise_is_foreseen_and_a_fall_is_not() -> None:
    rising, falling = Forecast(ForecastConfig(), 600.0), Forecast(ForecastConfig(), 600.0)
    feed(rising, [1.0 + 0.1 * minute for minute in range(60)])
    feed(falling, [10.0 - 0.1 * minute for minute in range(60)])
    up, down = rising.foresee(), falling.foresee()
    assert up is not None
    assert down is not None
    assert up.value > 6.8 + 0.3
    assert down.value == pytest.approx(falling.level or 0.0)  # the greatest until then is the present


def test_errors_are_measured_where_they_were_made() -> None:
    forecast = Forecast(ForecastConfig(), 300.0)
    feed(forecast, [2.0] * 30 + [4.0] * 4)
    foreseen = forecast.foresee()
    assert foreseen is not None
    assert 0.3 < foreseen.sigma < 2.0


def daily(minute: int) -> float:
    return 5.0 + 4.0 * math.sin(2.0 * math.pi * minute / 1440.0)


def test_the_same_time_of_an_earlier_day_is_remembered_and_scaled() -> None:
    config = ForecastConfig(periods_s=(7.0 * DAY_S, DAY_S))
    forecast = Forecast(config, 3600.0)
    for minute in range(1440):
        forecast.remember(minute * MINUTE, daily(minute))
    feed(forecast, [1.2 * daily(minute) for minute in range(240)], DAY_S)
    foreseen = forecast.foresee()
    assert foreseen is not None
    assert foreseen.by_pattern
    assert foreseen.value == pytest.approx(1.2 * daily(299), rel=0.03)


def test_a_hole_in_what_is_remembered_leaves_the_trend() -> None:
    forecast = Forecast(ForecastConfig(periods_s=(DAY_S,)), 600.0)
    for minute in range(50):
        forecast.remember(minute * MINUTE, 5.0)
    feed(forecast, [5.0] * 45, DAY_S)  # what came after the 50th minute of the earlier day is not known
    foreseen = forecast.foresee()
    assert foreseen is not None
    assert not foreseen.by_pattern


def test_after_a_long_silence_the_trend_begins_anew() -> None:
    forecast = Forecast(ForecastConfig(), 600.0)
    after = feed(forecast, [1.0 + minute for minute in range(30)])
    forecast.observe(after + 3600.0, 5.0)
    assert forecast.foresee() is None
    forecast.observe(after + 3660.0, 5.0)
    foreseen = forecast.foresee()
    assert foreseen is not None
    assert foreseen.value == 5.0


def test_forecasts_of_cells_that_were_skipped_are_not_judged() -> None:
    forecast = Forecast(ForecastConfig(), 300.0)
    after = feed(forecast, [1.0] * 20)
    judged = forecast.absolute_errors[2]
    feed(forecast, [1.0] * 3, after + 5 * MINUTE)
    assert forecast.absolute_errors[2] - judged == 1  # the last before the gap; those for later cells were for the gap
