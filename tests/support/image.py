"""Builds the image with buildah on a base made by mmdebstrap, and runs it as a cluster would.

Neither a registry nor a container engine is needed: bases are plain Debian, kept in the user's cache; a container is a
mount namespace with the image's files read-only and a chroot with the uid asked for.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.launch.cache import build_once, compute_key, default_cache_dir

ROOT = Path(__file__).parents[2]
SUITE = "bookworm"
COMPILER = "python3-dev,python3-venv,python3-pip,gcc,libc6-dev"
INCLUDED = {"base": "python3", "build-base": f"python3,{COMPILER},ca-certificates"}
AUTHORITIES = Path("/etc/ssl/certs")
UID = 54321
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
BUILD_LIMIT_S = 600


def need_parts() -> None:
    """Skip unless asked for, and where the tools are absent."""
    if os.environ.get("SLUICE_IMAGE") != "1":
        pytest.skip("builds images for minutes: `make image` runs it")
    missing = [tool for tool in ("buildah", "mmdebstrap", "unshare", "chroot") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        pytest.fail(f"needs root and {', '.join(missing) or 'nothing else'}", pytrace=False)


def call(*argv: str, limit_s: float = BUILD_LIMIT_S) -> str:
    """The command's output; fails with its last words."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s, check=False)
    assert done.returncode == 0, f"{' '.join(argv[:3])}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
    return done.stdout.strip()


def make_base(kind: str) -> str:
    """The name of the base image ``kind``."""
    key = compute_key(SUITE, INCLUDED[kind])
    folder = build_once(
        default_cache_dir() / f"image-{kind}-{key}",
        lambda scratch: call(
            "mmdebstrap", "--variant=minbase", f"--include={INCLUDED[kind]}", SUITE, str(scratch / "root.tar")
        ),
        print,
    )
    name = f"localhost/sluice-test-{kind}:{key}"
    if subprocess.run(("buildah", "inspect", "--type", "image", name), capture_output=True, check=False).returncode:
        commit(name, "scratch", ((folder / "root.tar", "/"),))
    return name


def commit(name: str, origin: str, added: tuple[tuple[Path, str], ...]) -> None:
    """An image of ``origin`` with files (archives are unpacked)."""
    container = call("buildah", "from", origin)
    try:
        for source, target in added:
            call("buildah", "add", "-q", container, str(source), target)
        call("buildah", "commit", "-q", container, name)
    finally:
        call("buildah", "rm", container)


def build(tag: str, dockerfile: str, **arguments: str) -> str:
    """The name of the image built from ``dockerfile``, nothing taken from an earlier build."""
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as pip:
        pip.write(f"[global]\ncert = {AUTHORITIES}/ca-certificates.crt\n")
        pip.flush()
        options = [option for name, value in arguments.items() for option in ("--build-arg", f"{name}={value}")]
        call(
            "buildah", "bud", "--isolation", "chroot", "--network", "host", "--layers=false", "--quiet", "--no-cache",
            "--secret", f"id=pip,src={pip.name}", "--volume", f"{AUTHORITIES}:{AUTHORITIES}:ro", *options,
            "--file", str(ROOT / dockerfile), "--tag", tag, str(ROOT),
        )  # fmt: skip
    return tag


def inspect(image: str) -> dict[str, object]:
    """The image's configuration: user, entry point, environment."""
    return json.loads(call("buildah", "inspect", "--type", "image", image))["OCIv1"]["config"]


@contextmanager
def mounted(image: str) -> Iterator[Path]:
    """The image's files until the block ends."""
    container = call("buildah", "from", image)
    try:
        yield Path(call("buildah", "mount", container))
    finally:
        call("buildah", "umount", container)
        call("buildah", "rm", container)


def measure(root: Path) -> int:
    """Bytes of all files, each link of a file once."""
    seen = {(status.st_dev, status.st_ino): status.st_size for status in map(Path.lstat, root.rglob("*"))}
    return sum(seen.values())


def fingerprint(root: Path) -> dict[str, str]:
    """Each path with its kind, mode, owner and content: everything but times."""
    prints = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        if path.is_symlink():
            content = os.readlink(path)  # noqa: PTH115 - the text, not a path
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            content = ""
        prints[str(path.relative_to(root))] = f"{status.st_mode:o} {status.st_uid}:{status.st_gid} {content}"
    return prints


@contextmanager
def running(
    root: Path, config: dict[str, object], arguments: list[str], log: Path, given: dict[str, Path] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """The image's entry point as an arbitrary uid: its files read-only, /tmp and the working
    folder its own, ``given`` files in /mnt."""
    place = str(config.get("WorkingDir") or "/")
    writable = ["tmp", "mnt", *([place.strip("/")] if place != "/" else [])]
    binds = [f"mount -t tmpfs -o mode=1777 tmpfs {root}/{folder}" for folder in writable]
    for name, source in (given or {}).items():
        binds += [f"cp {source} {root}/mnt/{name}", f"chmod 644 {root}/mnt/{name}"]
    script = "\n".join(
        (
            "set -eu",
            f"mount --bind {root} {root}",
            f"mount -o remount,bind,ro {root}",
            *binds,
            f"mount --rbind /dev {root}/dev",
            f"mount -t proc proc {root}/proc",
            f'exec chroot --userspec={UID}:{UID} --groups= {root} "$@"',
        )
    )
    entry = [*map(str, config["Entrypoint"]), *arguments]  # type: ignore[call-overload]
    path = next(each for each in config["Env"] if each.startswith("PATH="))  # type: ignore[attr-defined]
    environment = dict(each.split("=", 1) for each in config["Env"])  # type: ignore[attr-defined]
    argv = (
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        script,
        "sh",
        "env",
        "-C",
        place,
        path,
        *entry,
    )
    with log.open("wb") as written:
        process = subprocess.Popen(argv, stdout=written, stderr=subprocess.STDOUT, env=environment | {"PATH": PATH})
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
