"""The command, its verdict and its report, on an engine that answers in no time."""

import json
from dataclasses import replace

import pytest

from loadtests.calibration import run as command
from loadtests.calibration import session as sessions
from loadtests.calibration.client import RunFailedError
from loadtests.calibration.engine import Target, TargetUnfitError
from loadtests.calibration.machine import Usage, parse_busy_s
from loadtests.calibration.verdict import compare
from service.emulator.profile_file import dump_profile, load_profile
from tests.unit.loadtests.calibration.world import QUIET, TRUE, ask, measure

TARGET = Target("127.0.0.1", 1, "small", "0.32.0", 4096, 128, TRUE.kv_blocks, 16, 2048)
BUSY = Usage(1.0, 0.9)


class Engine:
    """Stands for the engine, its tokenizer and the client; ``usages`` are those of the next runs."""

    def __init__(self):
        self.usages = []
        self.fails = ""
        self.runs = []

    def write(self, run, salt):
        self.runs.append((run.name, salt))
        self.run = run
        return [
            type("Ask", (), {"call": call, "body": b"", **vars_of(q)})
            for call, q in zip(run.calls, ask(run), strict=True)
        ]

    def measure(self, name, asks, address, limit_s, meter):
        usage = self.usages.pop(0) if self.usages else QUIET
        if self.fails and name.startswith(self.fails):
            raise RunFailedError(f"{name}: a request failed: status 503", usage)
        return measure(self.run, usage=usage)


def vars_of(question):
    return {"prompt_tokens": question.prompt_tokens, "block_hashes": question.block_hashes}


@pytest.fixture
def engine(monkeypatch):
    engine = Engine()
    monkeypatch.setattr(command, "inspect", lambda url, seqs, tokens: TARGET)
    monkeypatch.setattr(command, "Writer", lambda *_: engine)
    monkeypatch.setattr(sessions, "measure", engine.measure)
    monkeypatch.setattr(sessions, "read_prefix_hits", lambda target: 0.0)
    monkeypatch.setattr(command, "interrupt_on_sigterm", lambda: None)
    return engine


def calibrate(folder, *options):
    return command.main(["--worker", "http://worker:1", "--quick", "--out", str(folder), *options])


def test_the_emulator_is_found_honest_and_the_report_says_how(engine, tmp_path, capsys):
    assert calibrate(tmp_path, "--rows", str(tmp_path / "rows.json")) == 0
    text = capsys.readouterr().out
    assert "honest: the median error" in text
    assert "NOT" not in text
    record = json.loads((tmp_path / "calibration.json").read_text())
    assert record["honest"] is True
    assert record["errors"]["e2e"]["median"] < 0.1
    assert [run["utilisation"] for run in record["runs"]] == [0.5, 0.65, 0.8]
    assert record["fit"]["loss"] <= record["fit"]["loss_of_first_guess"]
    page = (tmp_path / "calibration.md").read_text()
    assert "vLLM 0.32.0, a worker that ran already" in page
    assert (tmp_path / "calibration.png").read_bytes().startswith(b"\x89PNG")
    profile = load_profile(str(tmp_path / "calibrated.json"))
    assert profile.cost.base_s == pytest.approx(TRUE.cost.base_s, rel=0.1)
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows["held_out"]) == 3
    assert len(rows["sweep"]) == len({name for name, salt in engine.runs if name.startswith(("batch", "single"))})


def test_a_wrong_profile_is_called_not_honest(engine, tmp_path, capsys):
    wrong = tmp_path / "wrong.json"
    wrong.write_text(dump_profile(replace(TRUE, cost=replace(TRUE.cost, base_s=0.015)), {}))
    assert calibrate(tmp_path, "--judge", str(wrong)) == 1
    assert "NOT honest: the median error" in capsys.readouterr().out
    record = json.loads((tmp_path / "calibration.json").read_text())
    assert record["honest"] is False
    assert record["errors"]["e2e"]["bias"] > 0.15, "it says in which direction it is wrong"
    assert record["fit"] is None
    assert "NOT honest" in (tmp_path / "calibration.md").read_text()
    assert not (tmp_path / "calibrated.json").exists()
    assert not [name for name, _ in engine.runs if name.startswith("batch")], "judging needs no sweep"


def test_the_right_profile_is_called_honest(engine, tmp_path):
    right = tmp_path / "right.json"
    right.write_text(dump_profile(TRUE, {}))
    assert calibrate(tmp_path, "--judge", str(right)) == 0


def test_a_run_that_the_engine_cannot_do_spoils_the_verdict(engine, tmp_path, capsys):
    right = tmp_path / "right.json"
    right.write_text(dump_profile(TRUE, {}))
    engine.fails = "chat at"
    assert calibrate(tmp_path, "--judge", str(right)) == 1
    assert "no held-out run could be measured" in capsys.readouterr().out


def test_one_failed_run_among_good_ones_is_told(engine, tmp_path, capsys, monkeypatch):
    right = tmp_path / "right.json"
    right.write_text(dump_profile(TRUE, {}))
    whole, calls = engine.measure, []

    def fail_second(name, *rest):
        calls.append(name)
        engine.fails = name if len(calls) == 3 else ""
        return whole(name, *rest)

    monkeypatch.setattr(sessions, "measure", fail_second)
    assert calibrate(tmp_path, "--judge", str(right)) == 1
    assert "failed: chat at" in capsys.readouterr().out.replace("\n", " ")
    assert len(json.loads((tmp_path / "calibration.json").read_text())["runs"]) == 2


def test_disturbed_runs_are_repeated_with_other_texts_while_patience_lasts(engine, tmp_path):
    right = tmp_path / "right.json"
    right.write_text(dump_profile(TRUE, {}))
    engine.usages = [QUIET, BUSY, QUIET, QUIET, QUIET]
    assert calibrate(tmp_path, "--judge", str(right)) == 0
    names = [name for name, salt in engine.runs if salt]
    assert len(names) == 5
    assert names[1] == names[2]
    assert len({salt for _, salt in engine.runs if salt}) == 5
    assert json.loads((tmp_path / "calibration.json").read_text())["repeated"] == 1
    engine.usages = [QUIET, BUSY, QUIET, QUIET]
    assert calibrate(tmp_path, "--judge", str(right), "--patience-s", "0") == 0
    assert json.loads((tmp_path / "calibration.json").read_text())["disturbed"] == [f"{names[1]}: 0.90"]


def test_an_engine_that_is_not_there_is_a_failure(monkeypatch, engine, tmp_path, capsys):
    def missing(*_):
        raise TargetUnfitError("http://worker:1: no vLLM worker")

    monkeypatch.setattr(command, "inspect", missing)
    assert calibrate(tmp_path) == 1
    assert "no vLLM worker" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [("--load", "0.5,1.2"), ("--load", "much"), ("--seconds", "0"), ("--judge", "nowhere.json"), ("--limit", "-1")],
)
def test_bad_input_is_told_before_anything_is_started(options, engine, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        calibrate(tmp_path, *options)
    assert caught.value.code == 2
    assert options[0] in capsys.readouterr().err
    assert not engine.runs


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for word in ("Poisson", "exit codes", "--judge", "sluice emulate --profile"):
        assert word.lower() in text.lower()


def test_an_error_is_relative_to_what_was_measured():
    errors = compare([(1.1, 1.0), (0.8, 1.0), (3.0, 1.0)])
    assert errors.median == pytest.approx(0.2)
    assert errors.p90 == pytest.approx(2.0)
    assert errors.bias == pytest.approx(0.1)
    assert compare([(1.0, 0.0)]).median == float("inf")


def test_busy_time_is_all_that_is_not_idle():
    assert parse_busy_s("cpu  100 10 50 9999 77 3 2 5 40 0\ncpu0 1 2", 100) == pytest.approx(1.70)
    assert Usage(1.0, None).is_disturbed is False
