"""The gateway's end of its clerk, with clerks that die, hang and lie; and the clerk's own process."""

import asyncio
import json
import subprocess
import sys
import threading

import pytest

from service.ledger import clerk_link
from service.ledger.clerk_link import ClerkLink
from service.runtime.clock import sleep
from tests.support.record import NOVEMBER_S, Books, build_settled

pytestmark = pytest.mark.integration

ECHO = """
import json, sys
config = json.loads(sys.stdin.readline())
print(json.dumps({"status": {"seq": config["seq"], "fault": None}}), flush=True)
for line in sys.stdin:
    told = json.loads(line)
    if told.get("tenant") == "deadly":
        sys.exit(1)
    if "ask" in told and told["tenant"] != "slow":
        print(json.dumps({"answer": told["ask"], "month": "2026-11", "tiers": {}}), flush=True)
"""
STUBBORN = "import time; time.sleep(600)"


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():
            await sleep(0.01)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(clerk_link, "_AGAIN_S", 0.05)
    monkeypatch.setattr(clerk_link, "_ANSWER_S", 0.5)
    monkeypatch.setattr(clerk_link, "_LEAVE_S", 0.5)


async def test_it_asks_and_hears_how_far_the_database_is(quick):
    link = ClerkLink({"seq": 7}, (sys.executable, "-c", ECHO))
    assert "not running" in (await link.ask("acme"))["fault"]
    link.note_terms("c0ffee", "{}", 1)
    link.start()
    await until(lambda: link.seq == 7)
    link.note_terms("decade", "{}", 2)
    assert (await link.ask("acme"))["month"] == "2026-11"
    assert "no answer within" in (await link.ask("slow"))["fault"]
    await link.stop()


async def test_a_clerk_that_cannot_be_started_is_told_and_tried_again(quick, tmp_path):
    program = tmp_path / "clerk"
    link = ClerkLink({"seq": 7}, (str(program),))
    link.start()
    await until(lambda: link.fault is not None)
    assert "cannot be started" in link.fault
    program.write_text(f"#!{sys.executable}\n{ECHO}")
    program.chmod(0o755)
    await until(lambda: link.seq == 7)
    await link.stop()


async def test_a_clerk_that_dies_is_followed_by_another(quick):
    link = ClerkLink({"seq": 7}, (sys.executable, "-c", ECHO))
    link.start()
    await until(lambda: link.seq == 7)
    assert "has ended" in (await link.ask("deadly"))["fault"]
    await until(lambda: link.fault is None)
    assert (await link.ask("acme"))["month"] == "2026-11"
    await link.stop()


async def test_a_clerk_that_will_not_leave_is_ended(quick, caplog):
    link = ClerkLink({"seq": 7}, (sys.executable, "-c", STUBBORN))
    link.start()
    await until(lambda: link._process is not None)
    process = link._process
    await link.stop()
    assert process.returncode == -9
    assert "waits in the spool" in caplog.text


def run_clerk(lines):
    told = "".join(json.dumps(line) + "\n" for line in lines)
    command = [sys.executable, "-m", "service.clerk"]
    return subprocess.run(command, input=told, capture_output=True, text=True, timeout=60, check=False)


def test_the_process_takes_everything_in_and_ends_with_its_input(tmp_path):
    books = Books(tmp_path)
    books.record([build_settled(number, NOVEMBER_S + number) for number in range(30)])
    config = {"database": books.url, "spool": str(books.folder), "retention_months": 600}
    done = run_clerk([config, {"terms": ["c0ffee", "{}", 1]}, {"ask": 1, "tenant": "acme"}])
    assert done.returncode == 0, done.stderr
    assert any("answer" in json.loads(line) for line in done.stdout.splitlines())
    assert books.rows("select count(*) from entries_2026_11") == [(30,)]
    books.close()


def test_what_came_after_it_had_found_nothing_to_do_is_taken_in_too(tmp_path):
    books = Books(tmp_path)
    books.record([build_settled(1, NOVEMBER_S)])
    config = {"database": books.url, "spool": str(books.folder), "retention_months": 600}
    command = [sys.executable, "-m", "service.clerk"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as clerk:
        clerk.stdin.write(json.dumps(config) + "\n")
        clerk.stdin.flush()
        while json.loads(clerk.stdout.readline())["status"]["seq"] != 1:
            pass
        clerk.stdin.write(json.dumps({"ask": 1, "tenant": "acme"}) + "\n")  # wakes it: the next step finds nothing
        clerk.stdin.flush()
        assert "answer" in json.loads(clerk.stdout.readline())
        threading.Event().wait(0.4)  # after that step it looks again in a second
        books.record([build_settled(2, NOVEMBER_S), build_settled(3, NOVEMBER_S)])
        clerk.stdin.close()
        assert clerk.wait(30) == 0
    assert books.rows("select count(*) from entries_2026_11") == [(3,)]
    books.close()


def test_a_process_that_is_told_nothing_ends():
    done = run_clerk([])
    assert (done.returncode, done.stdout) == (0, "")
