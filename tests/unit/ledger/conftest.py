"""A spool and a database for each test."""

import pytest

from tests.support.record import Books


@pytest.fixture
def books(tmp_path):
    with_files = Books(tmp_path)
    yield with_files
    with_files.close()
