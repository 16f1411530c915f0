"""Several gateways before the same workers, in the simulator: the report's table in short, and its harness."""

from dataclasses import replace

import pytest

from loadtests.sim.gateways import CASES, LOAD, SCENARIO, Case, Figures, judge, main, run_case, sum_up
from loadtests.sim.replicas import Exchange
from loadtests.sim.scenario import SCENARIOS
from service.domain.errors import InvariantError
from service.domain.event import DrainBegan

SHORT = replace(SCENARIOS[SCENARIO], load=LOAD, warmup_s=10.0, duration_s=25.0, settle_s=10.0)


def run(case, scenario=SHORT):
    return sum_up(case, [run_case(case, scenario, 1)], None)


@pytest.fixture(scope="module")
def single():
    return run(Case("one", 1))


def test_four_gateways_serve_as_one_does(single):
    four = run(Case("four", 4))
    assert four.goodput_rps > 0.9 * single.goodput_rps
    assert four.contract_attainment > 0.97
    assert four.valves == 0
    assert 0.95 < four.classed < 1.1


def test_four_that_do_not_know_of_each_other_break_their_promises(single):
    """The harness can fail: limits and contracts that multiply by four."""
    apart = run(Case("apart", 4, Exchange(shared=False)))
    assert apart.classed > 1.5
    assert apart.contract_attainment < 0.9
    assert apart.goodput_rps < 0.8 * single.goodput_rps


def test_what_a_dead_gateway_had_is_taken_up_within_two_seconds():
    case = next(case for case in CASES if case.killed)
    scenario = replace(SHORT, warmup_s=40.0, duration_s=23.0, settle_s=5.0)
    assert run(case, scenario).taken_s <= 2.0


def test_with_the_store_away_all_go_on():
    dark = run(Case("dark", 4, Exchange(dark=(15.0, 30.0))))
    assert dark.contract_attainment > 0.8
    assert dark.valves == 0


def test_the_same_seed_gives_the_same_run():
    scenario = replace(SHORT, warmup_s=2.0, duration_s=5.0, settle_s=5.0)
    one, other = (run(Case("four", 4), scenario) for _ in range(2))
    assert one == other


def test_events_that_the_simulator_never_sends_are_refused():
    world, _ = run_case(Case("two", 2), replace(SHORT, warmup_s=1.0, duration_s=1.0, settle_s=1.0), 1)
    with pytest.raises(InvariantError):
        world.replicas.handle(DrainBegan(), 5.0)


def test_the_verdict_names_each_bar_that_is_missed():
    def figures(name, goodput=1.0, contract=1.0, valves=0, taken_s=None):
        return Figures(name, 4, 40.0, goodput, contract, 1.0, valves, taken_s, 0)

    fine = [figures("four"), figures("four, one is killed", taken_s=1.4), figures("four that do not share", valves=9)]
    assert judge(fine) == []
    bad = [figures("four", 0.9, 0.9, 1), figures("four, one is killed", taken_s=3.0)]
    assert len(judge(bad)) == 4
    assert len(judge([figures("four"), figures("four, one is killed")])) == 1


def test_the_command_writes_what_it_printed(tmp_path, monkeypatch, capsys):
    cases = (Case("one", 1), Case("four", 4), Case("four, one is killed", 4, killed=True))
    monkeypatch.setattr("loadtests.sim.gateways.CASES", cases)
    monkeypatch.setattr("loadtests.sim.gateways.KILLED_AT_S", 25.0)
    assert main(["--seeds", "1", "--seconds", "8", "--out", str(tmp_path)]) in (0, 1)
    printed = capsys.readouterr().out
    for line in (tmp_path / "replicas.md").read_text().splitlines():
        assert not line.startswith("| four") or line in printed
    assert "loadtests.sim.gateways --seeds 1 --seconds 8" in (tmp_path / "replicas.json").read_text()
