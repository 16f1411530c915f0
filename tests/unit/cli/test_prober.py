"""``sluice prober``: what it needs to be told."""

from pathlib import Path

from typer.testing import CliRunner

from service.cli.commands import build_app
from service.cli.prober import name_key

app = build_app()

SLO = Path(__file__).parents[3] / "slo"


def run(folder, **environment):
    arguments = ["prober", "--model", "m", "--once", "--dir", str(folder)]
    unset = {name_key(tier): None for tier in ("priority", "default", "flex")}
    return CliRunner().invoke(app, arguments, env={**unset, **environment}, terminal_width=120)


def test_without_a_key_it_says_where_to_put_one():
    answer = run(SLO)
    assert answer.exit_code == 2
    assert "SLUICE_PROBE_KEY_DEFAULT or SLUICE_PROBE_KEY_FLEX or SLUICE_PROBE_KEY_PRIORITY" in answer.output


def test_without_objectives_it_says_so(tmp_path):
    answer = run(tmp_path, SLUICE_PROBE_KEY_PRIORITY="k")
    assert answer.exit_code == 2
    assert "has no objectives" in answer.output


def test_a_tiers_variable_is_named_after_it():
    assert name_key("very-gold") == "SLUICE_PROBE_KEY_VERY_GOLD"
