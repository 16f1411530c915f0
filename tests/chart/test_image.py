"""The images, built twice and run as a cluster runs them. Minutes long: `make image` runs it."""

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support import image

pytestmark = pytest.mark.timeout(900)
ADDED_MAX_BYTES = 120_000_000
GATEWAY_PORT, ADMIN_PORT, WORKER_PORT = 24801, 24802, 24803
TOOLS = ("pip", "pip3", "gcc", "cc", "make", "hatchling", "git", "ld", "as")


@pytest.fixture(scope="module")
def base() -> str:
    image.need_parts()
    return image.make_base("base")


@pytest.fixture(scope="module")
def built(base: str) -> Iterator[Path]:
    """The files of the image."""
    name = image.build("localhost/sluice-test:first", "Dockerfile", BASE=base, BUILD_BASE=image.make_base("build-base"))
    with image.mounted(name) as root:
        yield root


@pytest.fixture
def config(built: Path) -> dict[str, object]:
    return image.inspect("localhost/sluice-test:first")


def ask(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def wait_for(port: int, path: str, log: Path, bound_s: float = 30.0) -> float:
    began_at = time.monotonic()
    while ask(port, path) != 200:
        assert time.monotonic() - began_at < bound_s, log.read_text()[-2000:]
        time.sleep(0.05)
    return time.monotonic() - began_at


def test_it_adds_little_to_its_base(base: str, built: Path) -> None:
    with image.mounted(base) as below:
        added = image.measure(built) - image.measure(below)
    print(f"\nimage: {added / 1e6:.1f} MB more than its base")
    assert 10e6 < added < ADDED_MAX_BYTES


def test_nothing_that_builds_is_left(built: Path) -> None:
    found = [
        tool
        for tool in TOOLS
        for folder in ("opt/sluice/bin", "usr/bin", "usr/local/bin")
        if (built / folder / tool).exists()
    ]
    assert found == []
    assert list(built.glob("opt/sluice/lib/python3*/site-packages/pip*")) == []
    assert not (built / "src").exists()
    assert not (built / "wheels").exists()


def test_tests_own_packages_are_left_out(built: Path) -> None:
    (packages,) = built.glob("opt/sluice/lib/python3*/site-packages")
    names = {path.name for path in packages.iterdir()}
    assert {"service", "uvloop", "pydantic"} <= names
    assert not {"pytest", "matplotlib", "tests", "hatchling", "openai"} & names


def test_its_user_is_above_10000(config: dict[str, object]) -> None:
    assert int(str(config["User"]).split(":")[0]) > 10_000


def test_nothing_can_be_written_by_its_user(built: Path) -> None:
    loose = [path for path in (built / "opt").rglob("*") if not path.is_symlink() and path.lstat().st_mode & 0o022]
    assert loose == []


def test_built_again_it_is_the_same(base: str, built: Path) -> None:
    again = image.build(
        "localhost/sluice-test:second", "Dockerfile", BASE=base, BUILD_BASE=image.make_base("build-base")
    )
    first = image.fingerprint(built)
    with image.mounted(again) as root:
        second = image.fingerprint(root)
    differing = {path for path in first.keys() | second.keys() if first.get(path) != second.get(path)}
    assert differing == set()
    print(f"\nimage: {len(first)} paths the same in a second build")


def test_it_serves_as_an_arbitrary_uid_with_a_read_only_root(
    built: Path, config: dict[str, object], tmp_path: Path
) -> None:
    settings = yaml.safe_load((image.ROOT / "deploy" / "sluice.example.yaml").read_text())
    settings["pool"]["workers"] = [f"http://127.0.0.1:{WORKER_PORT}"]
    settings["listen"] |= {"port": GATEWAY_PORT, "admin_port": ADMIN_PORT}
    written = tmp_path / "sluice.yaml"
    written.write_text(yaml.safe_dump(settings))
    worker_log, log = tmp_path / "worker.log", tmp_path / "gateway.log"
    emulate = ["emulate", "--port", str(WORKER_PORT)]
    serve = ["serve", "-c", "/mnt/sluice.yaml"]
    with (
        image.running(built, config, emulate, worker_log) as worker,
        image.running(built, config, serve, log, {"sluice.yaml": written}) as gateway,
    ):
        wait_for(WORKER_PORT, "/health", worker_log)
        took_s = wait_for(GATEWAY_PORT, "/readyz", log)
        assert ask(GATEWAY_PORT, "/v1/models") == 401
        for process in (worker, gateway):
            status = Path(f"/proc/{process.pid}/status").read_text()
            assert f"Uid:\t{image.UID}\t{image.UID}" in status
            mounts = Path(f"/proc/{process.pid}/mountinfo").read_text().splitlines()
            assert any(line.split()[4] == "/" and line.split()[5].startswith("ro") for line in mounts)
    print(f"\nimage: ready {took_s:.1f} s after its worker, as uid {image.UID}, root read-only")


def test_the_workers_image_starts_vllm_by_profile(base: str, tmp_path: Path) -> None:
    """vLLM's own image is too large for a test: a stand-in `vllm` on plain Debian shows what would be started."""
    stand_in = tmp_path / "vllm"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    image.commit("localhost/sluice-test:engine", image.make_base("build-base"), ((stand_in, "/usr/local/bin/vllm"),))
    name = image.build("localhost/sluice-test:worker", "deploy/worker.Dockerfile", BASE="localhost/sluice-test:engine")
    config = image.inspect(name)
    log = tmp_path / "log"
    asked = [*map(str, config["Cmd"]), "--force", "--shutdown-grace-s", "1800"]  # type: ignore[call-overload]
    with image.mounted(name) as root, image.running(root, config, asked, log) as process:
        assert process.wait(60) == 0, log.read_text()
    said = log.read_text().splitlines()
    assert said[:2] == ["serve", "MiniMaxAI/MiniMax-M3.1-Flash"]
    assert said[said.index("--shutdown-timeout") + 1] == "1800"
    assert said[said.index("--kv-cache-dtype") + 1] == "nvfp4"


def test_a_base_without_vllm_is_refused(base: str) -> None:
    with pytest.raises(AssertionError, match="BASE has no vllm"):
        image.build("localhost/sluice-test:none", "deploy/worker.Dockerfile", BASE=image.make_base("build-base"))
