"""Unit tests open no sockets; Unix sockets are let through, since an event loop wakes itself by a pair of them."""

import pytest
from pytest_socket import disable_socket, enable_socket


@pytest.fixture(autouse=True)
def _no_sockets():
    disable_socket(allow_unix_socket=True)
    yield
    enable_socket()
