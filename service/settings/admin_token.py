"""Where the admin token comes from: the environment, else a file that only this user can read.

A gateway that is given no token makes one at start and leaves it in a folder of the user's own, so that ``sluice
drain`` on the same machine finds it; it is never printed and never logged.
"""

import os
import secrets
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from service.settings.build import ADMIN_TOKEN


def locate_token_file(admin_port: int, environment: Mapping[str, str]) -> Path:
    """The file of the gateway on ``admin_port``."""
    runtime_dir = environment.get("XDG_RUNTIME_DIR")
    root = Path(runtime_dir) / "sluice" if runtime_dir else Path(tempfile.gettempdir()) / f"sluice-{os.getuid()}"
    return root / f"admin-token-{admin_port}"


def obtain_token(admin_port: int, environment: Mapping[str, str]) -> tuple[str, Path | None]:
    """The token to ask for, and the file it was left in if it was made here."""
    given = environment.get(ADMIN_TOKEN)
    if given:
        return given, None
    path = locate_token_file(admin_port, environment)
    _make_private(path.parent)
    token = secrets.token_urlsafe(32)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(token)
    scratch.replace(path)
    return token, path


def find_token(admin_port: int, environment: Mapping[str, str]) -> str | None:
    """The token of a gateway on this machine, for a command of the same user; ``None`` if there is none to be found."""
    given = environment.get(ADMIN_TOKEN)
    if given:
        return given
    path = locate_token_file(admin_port, environment)
    try:
        return path.read_text() if path.lstat().st_uid == os.getuid() else None
    except OSError:
        return None


def _make_private(folder: Path) -> None:
    """A folder that belongs to us and opens to nobody else; somebody else's in its place is refused."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else: set {ADMIN_TOKEN} or XDG_RUNTIME_DIR")
    folder.chmod(0o700)
