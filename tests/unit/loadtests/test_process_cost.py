"""Parsing of /proc and the family of a process."""

from loadtests.live.process_cost import compute_family, parse_parent, parse_status_kib


def test_parent_behind_a_name_with_spaces_and_brackets():
    assert parse_parent("42 (a (bad) name) S 7 42 42 0 -1") == 7


def test_status_field():
    status = "Name:\tx\nVmHWM:\t   2048 kB\nVmRSS:\t   1024 kB\n"
    assert parse_status_kib(status, "VmHWM") == 2048
    assert parse_status_kib(status, "VmRSS") == 1024
    assert parse_status_kib(status, "VmSwap") is None


def test_family_is_the_roots_and_all_their_descendants_once():
    parents = {1: 0, 10: 1, 11: 10, 12: 11, 20: 1}
    assert compute_family(parents, [10]) == [10, 11, 12]
    assert compute_family(parents, [10, 11]) == [10, 11, 12]
    assert compute_family(parents, [99]) == [99]
