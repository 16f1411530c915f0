"""``sluice migrate``: the tables are there afterwards, a second time changes nothing, and faults name their cure."""

import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.commands import build_app

app = build_app()

EXAMPLE = Path(__file__).parents[3] / "deploy" / "sluice.example.yaml"


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["migrate", *words])
    return result.exit_code, result.stdout, result.stderr


def tables(file: Path) -> set[str]:
    with sqlite3.connect(file) as connection:
        found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    return found


def test_an_empty_database_gets_its_tables_once(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    assert run("--ledger", f"sqlite:///{file}")[0] == 0
    made = tables(file)
    assert len(made) > 2
    code, said, _ = run("--ledger", f"sqlite:///{file}")
    assert (code, tables(file)) == (0, made)
    assert "in the present form" in said


@pytest.mark.parametrize(("line", "code"), [("ledger: sqlite:///{}/l.db", 0), ("ledger: null", 0), ("ledgr: x", 2)])
def test_the_configuration_says_where(tmp_path: Path, line: str, code: int) -> None:
    config = tmp_path / "sluice.yaml"
    kept = [each for each in EXAMPLE.read_text().splitlines() if not each.startswith("ledger:")]
    config.write_text("\n".join([*kept, line.format(tmp_path)]))
    assert run("-c", str(config))[0] == code
    assert (tmp_path / "l.db").exists() is ("l.db" in line)


def test_what_is_no_database_is_bad_input() -> None:
    code, _, err = run("--ledger", "mysql://x/y")
    assert code == 2
    assert "postgresql://" in err


def test_a_database_that_is_away_is_a_failure() -> None:
    code, _, err = run("--ledger", "postgresql://nobody@127.0.0.1:1/none")
    assert code == 1
    assert "cannot be brought to the present form" in err
