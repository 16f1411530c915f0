"""How fast a worker is."""

import random

import pytest

from service.flow.pace import DecodePace, PrefillPace, ReadingPace


class TestDecode:
    def test_before_anything_was_measured(self):
        assert DecodePace().predict_s(4.0) is None
        assert not DecodePace().known

    @pytest.mark.parametrize(("batch", "tpot_s"), [(0.4, 0.01), (4.0, 0.0)])
    def test_what_says_nothing_is_left_out(self, batch, tpot_s):
        pace = DecodePace()
        pace.observe(batch, tpot_s)
        assert not pace.known

    def test_one_point_tells_half_of_the_slope(self):
        pace = DecodePace()
        pace.observe(10.0, 0.02)
        assert pace.known
        assert pace.predict_s(5.0) == 0.02
        assert pace.predict_s(20.0) == pytest.approx(0.03)

    def test_between_points_and_beyond(self):
        pace = DecodePace()
        for _ in range(200):
            pace.observe(10.0, 0.02)
            pace.observe(20.0, 0.03)
            pace.observe(40.0, 0.04)
        assert pace.predict_s(10.0) == pytest.approx(0.02, rel=0.05)
        assert pace.predict_s(15.0) == pytest.approx(0.025, rel=0.05)
        assert pace.predict_s(30.0) == pytest.approx(0.035, rel=0.05)
        assert pace.predict_s(60.0) == pytest.approx(0.05, rel=0.05)
        assert pace.predict_s(1.0) == pytest.approx(0.02, rel=0.05)

    def test_who_is_alone(self):
        pace = DecodePace()
        assert pace.lone_s == 0.0
        pace.observe(10.0, 0.02)
        assert pace.lone_s == pytest.approx(0.011)
        for _ in range(20):
            pace.observe(10.0, 0.02)
            pace.observe(30.0, 0.04)
        assert pace.lone_s == pytest.approx(0.011, abs=1e-3)

    def test_where_the_batch_changes_nothing_who_is_alone_has_the_same_pace(self):
        pace = DecodePace()
        for batch in (10.0, 50.0) * 20:
            pace.observe(batch, 0.5)
        assert pace.lone_s == pytest.approx(0.5, rel=0.05)

    def test_a_machine_that_slows_down_does_so_at_every_batch(self):
        pace = DecodePace()
        for batch in (4.0, 40.0):
            pace.observe(batch, 0.02)
        before = pace.predict_s(40.0)
        for _ in range(10):
            pace.observe(4.0, 0.04)
        assert pace.predict_s(40.0) > 1.1 * before


class TestPrefill:
    def test_the_prior(self):
        assert PrefillPace().predict_s(1000) == pytest.approx(0.07)

    def test_a_line_is_learned(self):
        pace = PrefillPace()
        for turn in range(400):
            tokens = 100 + 37 * (turn % 50)
            pace.observe(tokens, 0.1 + tokens * 2e-4)
        assert pace.predict_s(3000) == pytest.approx(0.7, rel=0.05)
        assert pace.samples == 400

    def test_one_stall_does_not_bend_it(self):
        pace = PrefillPace()
        for _ in range(50):
            pace.observe(1000, 0.07)
        pace.observe(1000, 1000.0)
        assert pace.predict_s(1000) < 0.5

    @pytest.mark.parametrize("seconds", [0.0, 0.1])
    def test_equal_prompts_for_ever_leave_it_sane(self, seconds):
        pace = PrefillPace()
        for _ in range(20_000):
            pace.observe(100, seconds)
        assert pace.predict_s(100) == pytest.approx(seconds, abs=0.02)
        for turn in range(2000):
            tokens = 100 + 37 * (turn % 50)
            pace.observe(tokens, 0.1 + tokens * 2e-4)
        assert pace.predict_s(3000) == pytest.approx(0.7, rel=0.1)


class TestReading:
    def test_time_over_tokens(self):
        pool = ReadingPace(0.99, 5.0)
        for _ in range(2000):
            pool.observe(1_000, 0.02)
            pool.observe(10_000, 0.2)
        assert pool.per_kilotoken_s == pytest.approx(0.02, rel=0.01)

    def test_a_worker_begins_where_the_pool_is(self):
        pool = ReadingPace(0.99, 5.0)
        for _ in range(200):
            pool.observe(10_000, 0.1)
        worker = ReadingPace(0.99, 20.0, pool)
        assert worker.per_kilotoken_s == pool.per_kilotoken_s == pytest.approx(0.01, rel=0.02)
        for _ in range(200):
            worker.observe(10_000, 0.3)
        assert worker.per_kilotoken_s == pytest.approx(0.03, rel=0.05)
        assert pool.per_kilotoken_s == pytest.approx(0.01, rel=0.02)

    def test_one_stall_is_not_believed(self):
        pool = ReadingPace(0.99, 5.0)
        pool.observe(1_000, 60.0)
        assert pool.per_kilotoken_s < 0.06


class TestJump:
    def learn(self, factor=1.0, readings=40, seed=5, pace=None):
        chance = random.Random(seed)
        pace = pace or DecodePace()
        for turn in range(readings):
            batch = (8.0, 32.0)[turn % 2]
            pace.observe(batch, factor * (0.01 + 0.0002 * batch) * chance.lognormvariate(0.0, 0.05))
        return pace

    @pytest.mark.parametrize("factor", [3.0, 0.4])
    def test_two_readings_scale_the_whole_table(self, factor):
        pace = self.learn()
        before = pace.predict_s(32.0)
        pace.observe(8.0, factor * pace.predict_s(8.0))
        pace.observe(8.0, factor * 0.0116)
        assert pace.predict_s(8.0) == pytest.approx(factor * 0.0116, rel=0.05)
        assert pace.predict_s(32.0) == pytest.approx(factor * before, rel=0.35)

    def test_one_reading_that_lies_far_off_does_not(self):
        pace = self.learn()
        before = pace.predict_s(32.0)
        pace.observe(8.0, 3.0 * 0.0116)
        pace.observe(8.0, 0.0116)
        assert pace.predict_s(32.0) < 1.2 * before

    def test_nor_do_two_on_different_sides(self):
        pace = self.learn()
        before = pace.predict_s(32.0)
        pace.observe(8.0, 3.0 * 0.0116)
        pace.observe(8.0, 0.3 * 0.0116)
        assert 0.8 * before < pace.predict_s(32.0) < 1.2 * before

    def test_where_readings_scatter_more_is_taken_for_chance(self):
        pace = DecodePace()
        for turn in range(60):
            pace.observe(8.0, 0.01 * (1.12 if turn % 2 else 0.9))
        spread = pace._spread
        assert 0.04 < spread < 0.2
