"""What images are made of: locks that are current, files a linter is content with, bases that can be chosen."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import runtime_lock

ROOT = runtime_lock.ROOT
FILES = (ROOT / "Dockerfile", ROOT / "deploy" / "worker.Dockerfile")
HADOLINT = Path(sys.executable).with_name("hadolint")


@pytest.mark.parametrize("path", [runtime_lock.RUNTIME, runtime_lock.BUILD], ids=lambda path: path.name)
def test_locks_are_cut_from_the_projects_own(path):
    assert path.read_text() == runtime_lock.render_locks()[path], "python -m tests.support.runtime_lock writes it anew"
    assert "--hash=sha256:" in path.read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_hadolint_is_content_without_a_skip(path):
    done = subprocess.run((HADOLINT, "--failure-threshold", "style", path), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "hadolint ignore" not in path.read_text()


def test_hadolint_sees_faults(tmp_path):
    faulty = tmp_path / "Dockerfile"
    faulty.write_text("FROM debian\nRUN apt-get install curl\n")
    done = subprocess.run((HADOLINT, faulty), capture_output=True, text=True)
    assert done.returncode != 0
    assert "DL3006" in done.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_base_can_be_chosen_and_is_never_latest(path):
    text = path.read_text()
    default = re.search(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    assert default is not None
    assert re.search(r":[\w.-]+$", default[1])
    assert not default[1].endswith(":latest")
    assert re.search(r"^USER 1000[1-9]:", text, re.MULTILINE)
    assert text.rstrip().splitlines()[-2].startswith("ENTRYPOINT")
