"""Building once, whole or not at all."""

import threading
from pathlib import Path

import pytest

from service.launch.cache import build_once, compute_key, default_cache_dir


def test_key_depends_on_each_part_and_on_their_borders() -> None:
    assert compute_key("a", "b") == compute_key("a", "b")
    assert len({compute_key("ab", "c"), compute_key("a", "bc"), compute_key("abc"), compute_key("b", "a")}) == 4


def test_cache_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert default_cache_dir() == Path("/caches/sluice")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_cache_dir() == Path("/home/me/.cache/sluice")


def test_built_once(tmp_path: Path) -> None:
    built: list[Path] = []

    def build(scratch: Path) -> None:
        built.append(scratch)
        (scratch / "file").write_text("whole")

    target = tmp_path / "cache" / "thing"
    assert build_once(target, build, lambda _: None) == target
    assert build_once(target, build, lambda _: None) == target
    assert len(built) == 1
    assert (target / "file").read_text() == "whole"
    assert not built[0].exists()


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(scratch: Path) -> None:
        (scratch / "half").touch()
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        build_once(tmp_path / "thing", fail, lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["thing.lock"]


def test_what_a_killed_builder_left_is_removed(tmp_path: Path) -> None:
    leftover = tmp_path / ".thing.dead"
    leftover.mkdir()
    (leftover / "half").touch()
    build_once(tmp_path / "thing", lambda scratch: None, lambda _: None)
    assert not leftover.exists()


def test_a_second_builder_waits_for_the_first(tmp_path: Path) -> None:
    target = tmp_path / "thing"
    building, waiting = threading.Event(), threading.Event()
    built: list[str] = []
    said: list[str] = []

    def slow(scratch: Path) -> None:
        building.set()
        assert waiting.wait(10)
        built.append("first")

    def tell(line: str) -> None:
        said.append(line)
        waiting.set()

    first = threading.Thread(target=build_once, args=(target, slow, lambda _: None))
    first.start()
    assert building.wait(10)
    assert build_once(target, lambda scratch: built.append("second"), tell) == target
    first.join(10)
    assert built == ["first"]
    assert said == ["another process is building thing; waiting for it"]
