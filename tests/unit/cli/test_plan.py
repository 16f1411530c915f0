"""``sluice plan`` on a trace and on a ledger."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli.commands import build_app
from service.cli.plan_input import InputError, read_trace
from tests.support.record import NOVEMBER_S, Books, build_settled

app = build_app()

EXAMPLE = Path(__file__).parents[3] / "deploy" / "sluice.example.yaml"
RATES = ["--prompt-rate", "1000", "--output-rate", "100"]


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["plan", *arguments])
    return result.exit_code, result.output


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = [
        f"2023-11-16 18:{second // 60:02}:{second % 60:02}.6805900,500,50" for second in range(600) for _ in range(4)
    ]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return path


def test_in_words(trace: Path, tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    code, text = run(str(trace), *RATES, "--contract", "60,500,50,1", "--price", "2.5", "--picture", str(picture))
    assert code == 0, text
    assert "4.0 workers' worth on average" in text
    assert "one zone dies (2 of 5)" in text
    assert "from 99 % to 99.9 %" in text
    assert "with one more contract" in text
    assert picture.read_text().startswith("<svg")


def test_for_a_script(trace: Path) -> None:
    code, text = run(str(trace), *RATES, "--json", "--scale", "10", "--attainment", "0.999")
    found = json.loads(text)
    assert code == 0
    assert found["mean_demand"] == pytest.approx(40.0)
    assert found["wanted"]["workers"] > 40


def test_the_other_kind_of_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 1500, "input_length": 10, "output_length": 3, "rank": 2}\n')
    (asked,) = read_trace(path)
    assert (asked.at_s, asked.rank, asked.prompt_tokens, asked.output_tokens) == (1.5, 2, 10.0, 3.0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", ""),
        ("a.csv", "WHEN,HOW\n1,2\n"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnever,1,2\n"),
        ("a.jsonl", "{"),
        ("a.jsonl", '{"timestamp": 1}\n'),
    ],
)
def test_what_is_no_trace_is_named(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=name):
        list(read_trace(path))
    assert run(str(path), *RATES)[0] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--ledger", "sqlite:///none.db"),
        ("missing.csv",),
        ("{trace}", "--contract", "many"),
        ("{trace}", "--ledger", "sqlite:///x.db", "--month", "2026-11"),
    ],
)
def test_bad_input_is_exit_code_two(trace: Path, arguments: tuple[str, ...]) -> None:
    assert run(*(one.replace("{trace}", str(trace)) for one in arguments), *RATES)[0] == 2


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    """Ten minutes of November: two requests a second of 1,000 + 11 tokens, some of best effort."""
    books = Books(tmp_path / "books")
    settled = [build_settled(number, NOVEMBER_S + number / 2.0, tier="flex" if number % 4 == 0 else "priority")
               for number in range(1200)]  # fmt: skip
    books.record(settled)
    books.take_all()
    yield books
    books.close()


def test_from_a_month_of_the_ledger(books: Books) -> None:
    code, text = run("--ledger", books.url, "--month", "2026-11", "-c", str(EXAMPLE), *RATES)
    assert code == 0, text
    assert "priority 99" in text
    # 1.5 requests a second are within contracts, each of 1,000 / 1,000 + 11 / 100 worker-seconds
    assert "1.7 workers' worth on average" in text


@pytest.mark.parametrize(("url", "month"), [("books", "2026-10"), ("sqlite:///none.db", "2026-11")])
def test_a_month_that_is_not_there_is_named(books: Books, url: str, month: str) -> None:
    code, text = run("--ledger", books.url if url == "books" else url, "--month", month, "-c", str(EXAMPLE), *RATES)
    assert code == 2
    assert f"no entries of {month}" in text or "there is no ledger" in text
