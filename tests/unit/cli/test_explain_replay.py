"""``sluice explain`` and ``sluice replay`` on a journal file; exit codes and JSON."""

import json
import re

import pytest
from typer.testing import CliRunner

from service.cli.commands import build_app
from service.domain.event import RequestArrived
from service.flow.config import FlowConfig, Reconfigured
from service.runtime.journal import decode_record, encode_header, encode_record
from tests.support.flow import build_request
from tests.support.world import World

app = build_app()

runner = CliRunner()


def run(*arguments):
    return runner.invoke(app, [str(one) for one in arguments], terminal_width=120)


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    path = tmp_path_factory.mktemp("journal") / "j.jsonl"
    recorded = World(4).run(length_s=15.0, arrivals_per_s=10.0)
    path.write_bytes(encode_header(recorded.header) + b"".join(map(encode_record, recorded.records)))
    return path


def rewrite(path, to, change):
    lines = path.read_bytes().splitlines(keepends=True)
    to.write_bytes(b"".join(change(lines)))
    return to


class TestReplay:
    def test_equal(self, journal):
        answer = run("replay", journal)
        assert answer.exit_code == 0
        assert re.fullmatch(r"equal: \d+ events, \d+ commands, the same again\n", answer.stdout)
        assert json.loads(run("replay", journal, "--json").stdout)["equal"] is True

    def test_different(self, journal, tmp_path):
        def spoil(lines):
            index = next(i for i, line in enumerate(lines) if b'["Dispatch"' in line)
            lines[index] = re.sub(rb'"commands":.*', b'"commands":[]}', lines[index])
            return lines

        path = rewrite(journal, tmp_path / "spoilt", spoil)
        answer = run("replay", path)
        assert answer.exit_code == 1
        assert "recorded: []" in answer.stdout
        assert '"Dispatch"' in answer.stdout
        told = json.loads(run("replay", path, "--json").stdout)
        assert told["equal"] is False
        assert told["difference"]["recorded"] == []

    def test_cut_off(self, journal, tmp_path):
        path = rewrite(journal, tmp_path / "cut", lambda lines: [*lines[:50], lines[50][:9]])
        answer = run("replay", path)
        assert answer.exit_code == 0
        assert "1 events are missing after the first 49" in answer.stderr

    def test_bad_input(self, journal, tmp_path):
        (tmp_path / "not").write_text("hello\n")
        assert run("replay", tmp_path / "not").exit_code == 2
        assert run("replay", tmp_path / "none").exit_code == 2
        (tmp_path / "policy").write_text("limits: {queue_ttl_s: 1}\n")
        answer = run("replay", journal, "--policy", tmp_path / "policy")
        assert answer.exit_code == 2
        assert "nothing that the core decides by" in answer.stderr

    def test_without_its_beginning(self, journal, tmp_path):
        path = rewrite(journal, tmp_path / "late", lambda lines: [lines[0], *lines[200:]])
        answer = run("replay", path)
        assert answer.exit_code == 1
        assert "does not begin with the start" in answer.stderr or "different from event" in answer.stdout

    def test_another_policy(self, journal, tmp_path):
        policy = tmp_path / "policy.yaml"
        policy.write_text("limits: {queued_requests_max: 1}\n")
        answer = run("replay", journal, "--policy", policy)
        assert answer.exit_code == 0
        assert "would have ended otherwise" in answer.stdout
        assert "queue_full" in answer.stdout
        assert "not simulated" in answer.stdout
        told = json.loads(run("replay", journal, "--policy", policy, "--json").stdout)
        assert told["changed"] >= len(told["first_changed"]) > 0
        assert len(told["first_changed"]) <= 20
        for figures in (told["recorded"], told["other"]):
            assert sum(sum(tier["outcomes"].values()) for tier in figures.values()) == told["requests"]

    def test_the_same_policy(self, journal, tmp_path):
        (tmp_path / "empty").write_text("")
        assert "; 0 would have ended otherwise" in run("replay", journal, "--policy", tmp_path / "empty").stdout


class TestExplain:
    def test_from_a_journal(self, journal):
        records = [decode_record(line) for line in journal.read_bytes().splitlines(keepends=True)[1:]]
        name = next(event.request.request_id for _, event, _ in records if isinstance(event, RequestArrived))
        answer = run("explain", name, "--journal", journal)
        assert answer.exit_code == 0
        assert f"request {name}, decided under config" in answer.stdout
        assert "arrived: tenant" in answer.stdout
        told = json.loads(run("explain", name, "--journal", journal, "--json").stdout)
        assert told["request_id"] == name
        assert told["steps"][0]["after_s"] == 0.0
        assert told["arrived"] is None, "this journal does not know the time of day"

    def test_unknown(self, journal, tmp_path):
        answer = run("explain", "nobody", "--journal", journal)
        assert answer.exit_code == 1
        assert "has nothing of 'nobody'" in answer.stderr
        assert run("explain", "x", "--journal", tmp_path / "none").exit_code == 2
        (tmp_path / "not").write_text("hello\n")
        assert run("explain", "x", "--journal", tmp_path / "not").exit_code == 2

    def test_under_a_later_config(self, journal, tmp_path):
        later = encode_record((900.0, Reconfigured(FlowConfig(requests_per_worker=3)), []))
        arrived = encode_record((901.0, RequestArrived(build_request("late", arrived_at=901.0)), []))
        path = rewrite(journal, tmp_path / "later", lambda lines: [*lines, later, arrived, b'{"cut'])
        told = [json.loads(run("explain", name, "--journal", path, "--json").stdout) for name in ("late", "r1")]
        assert told[0]["config_hash"] != told[1]["config_hash"]

    def test_no_token(self, tmp_path, monkeypatch):
        monkeypatch.delenv("SLUICE_ADMIN_TOKEN", raising=False)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        answer = run("explain", "x", "--admin", "http://127.0.0.1:1")
        assert answer.exit_code == 1
        assert "SLUICE_ADMIN_TOKEN" in answer.stderr
