"""Where the admin token comes from, and who may read it."""

import os

import pytest

from service.settings.admin_token import find_token, locate_token_file, obtain_token


def test_a_given_token_is_used_and_written_nowhere(tmp_path):
    environment = {"SLUICE_ADMIN_TOKEN": "given", "XDG_RUNTIME_DIR": str(tmp_path)}
    assert obtain_token(8081, environment) == ("given", None)
    assert find_token(8081, environment) == "given"
    assert list(tmp_path.iterdir()) == []


def test_a_token_is_made_and_found_again(tmp_path):
    environment = {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert find_token(8081, environment) is None
    token, path = obtain_token(8081, environment)
    assert path == locate_token_file(8081, environment)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert find_token(8081, environment) == token
    assert obtain_token(8081, environment)[0] != token
    assert obtain_token(8082, environment)[1] != path


def test_without_a_runtime_folder_one_of_the_users_own_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _, path = obtain_token(1, {})
    assert path is not None
    assert path.parent == tmp_path / f"sluice-{os.getuid()}"


def test_a_folder_that_is_not_ours_is_refused(tmp_path, monkeypatch):
    (tmp_path / "sluice").mkdir()
    monkeypatch.setattr("os.getuid", lambda: 12345)
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        obtain_token(8081, {"XDG_RUNTIME_DIR": str(tmp_path)})


def test_a_link_in_its_place_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "sluice").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        obtain_token(8081, {"XDG_RUNTIME_DIR": str(tmp_path)})
