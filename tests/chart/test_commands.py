"""Every command line of the chart is one that `sluice` takes: commands, options and their values."""

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from service.cli.commands import build_app
from tests.support.chart import render

app = build_app()

RENDERINGS = {
    "defaults": lambda: render(),
    "dev": lambda: render(files=["values-dev.yaml"]),
    "prod": lambda: render(files=["values-prod.yaml"]),
    "group": lambda: render(
        {"worker": {"kind": "LeaderWorkerSet", "nodes": 2, "tensorParallel": 8, "kvCacheDtype": "fp8", "model": "m"}}
    ),
}


def command_lines(which: str) -> Iterator[list[str]]:
    for name, spec in RENDERINGS[which]().pods():
        for container in spec["containers"]:
            if "command" not in container:  # a test pod runs Python
                # The kubelet puts these in.
                yield [
                    word.replace("$(LWS_WORKER_INDEX)", "1").replace("$(LWS_LEADER_ADDRESS)", "leader")
                    for word in container["args"]
                ]
            if "lifecycle" in container:
                words = container["lifecycle"]["preStop"]["exec"]["command"]
                words = shlex.split(words[2].removeprefix("exec ")) if words[0] == "sh" else words
                assert words[0] in ("sluice", "/opt/sluice/bin/sluice"), name
                yield words[1:]


def parse(words: list[str]) -> None:
    """As far as the command line is read; nothing is run."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words[0]]
        words = words[1:]
    command.make_context("sluice", list(words))


@pytest.mark.parametrize("which", RENDERINGS)
def test_every_command_line_is_taken(which):
    lines = list(command_lines(which))
    assert len(lines) >= 4
    for words in lines:
        parse(words)


def test_a_wrong_option_would_be_noticed():
    with pytest.raises(Exception, match=r"[Nn]o such option"):
        parse(["worker", "run", "--shutdown-timeout=3"])
    with pytest.raises(KeyError):
        parse(["serv"])
