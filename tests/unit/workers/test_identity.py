"""Whether a worker is still the same process, and what its list of models says."""

import json
from pathlib import Path

import pytest

from service.workers.identity import Incarnation, is_other, merge
from service.workers.probe import read_models

KNOWN = Incarnation(started_at=1000.0, model="m", tokens=50.0)


@pytest.mark.parametrize(
    ("seen", "other"),
    [
        (Incarnation(1000.0, "m", 60.0), False),
        (Incarnation(1000.0, "m", 10.0), False),  # the start time decides
        (Incarnation(1000.01, "m", 60.0), True),
        (Incarnation(None, "m", 60.0), False),
        (Incarnation(None, "n", 60.0), True),
        (Incarnation(None, "m", 49.0), True),  # counters never go down within a process
        (Incarnation(), False),
    ],
)
def test_another_process_is_noticed(seen: Incarnation, other: bool) -> None:
    assert is_other(KNOWN, seen) is other


def test_nothing_is_other_than_the_unknown() -> None:
    assert not is_other(Incarnation(), KNOWN)


def test_merge_keeps_what_a_page_leaves_out() -> None:
    assert merge(KNOWN, Incarnation()) == KNOWN
    assert merge(Incarnation(), KNOWN) == KNOWN
    assert merge(KNOWN, Incarnation(None, None, 70.0)) == Incarnation(1000.0, "m", 70.0)


def test_created_of_the_model_list_is_the_time_of_the_request_in_a_real_capture() -> None:
    """Why it is no part of the identity: the capture's ``Date`` is 1796069851, the process began at 1796069810.86."""
    body = (Path(__file__).parent / "data" / "models_vllm_0_32.json").read_bytes()
    assert json.loads(body)["data"][0]["created"] == 1796069851
    assert read_models(body) == {"MiniMax-M3.1-Flash"}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"data": 3}', b'{"data": [1]}', b'{"data": [{}]}', b"[" * 100_000]
)
def test_other_lists_are_unknown(body: bytes) -> None:
    assert read_models(body) is None
