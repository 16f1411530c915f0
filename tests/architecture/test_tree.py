"""This tree keeps to the design."""

from pathlib import Path

import pytest

from tests.architecture.checks import CHECKS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_tree(check):
    faults = check(ROOT)
    assert not faults, "\n".join(faults)
