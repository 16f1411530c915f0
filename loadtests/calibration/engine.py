"""Starts the real engine, or talks to one that runs, and asks it what its limits are."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from loadtests.live.child import choose_free_ports, run_child, wait_until_answering
from service.launch.cpu_engine import build_cpu_worker_command, prepare_cpu_engine
from service.launch.profiles import build_cpu_small_profile

START_LIMIT_S = 240.0
FIRST_PORT = 18300
# Not shown by the engine; the shipped profile sets the first, the second is vLLM's default for a server on the CPU.
LAYERS = 24
"""Of the model that is served. With the two of the shipped small model a step is 2 ms, most of it Python of three
processes on two cores: there the same procedure missed by 14 to 27 % (median, by how busy others were). With 24 a step
is 11 ms and mostly the model's, as it is where models are served."""
CPU_MAX_NUM_SEQS = 16
CPU_MAX_NUM_BATCHED_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Target:
    """An engine that answers. ``pids`` are its processes where they were started here."""

    host: str
    port: int
    model: str
    version: str
    context_tokens: int
    block_size: int
    kv_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    pids: list[int] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"


class TargetUnfitError(Exception):
    """There is no engine there that could be measured."""


@contextmanager
def run_cpu_engine(log: Path, say: Callable[[str], None]) -> Iterator[Target]:
    """A real vLLM on the CPU until the block ends; builds it first where this machine has none."""
    engine = prepare_cpu_engine(say, time.monotonic, layers=LAYERS)
    (port,) = choose_free_ports(FIRST_PORT, 1)
    limits = build_cpu_small_profile(engine.model_dir).limits
    command = build_cpu_worker_command(engine, port)
    say("starting vLLM on the CPU (20 to 60 s)")
    with run_child(command.argv, log, env=dict(command.environment)) as process:
        wait_until_answering(process, f"http://127.0.0.1:{port}/health", log, START_LIMIT_S, "")
        yield inspect(
            f"http://127.0.0.1:{port}", limits.running_requests, CPU_MAX_NUM_BATCHED_TOKENS, pids=[process.pid]
        )


def inspect(url: str, max_num_seqs: int, max_num_batched_tokens: int, pids: list[int] | None = None) -> Target:
    """What the engine behind ``url`` says of itself; raises ``TargetUnfitError``."""
    address = urlsplit(url)
    if address.scheme != "http" or address.hostname is None:
        raise TargetUnfitError(f"{url}: not the http address of a worker")
    try:
        with httpx.Client(base_url=url, trust_env=False, timeout=10.0) as client:
            card = client.get("/v1/models").raise_for_status().json()["data"][0]
            version = str(client.get("/version").raise_for_status().json()["version"])
            metrics = client.get("/metrics").raise_for_status().text
    except (httpx.HTTPError, ValueError, KeyError, IndexError) as error:
        raise TargetUnfitError(f"{url}: no vLLM worker: {error}") from error
    return Target(
        host=address.hostname,
        port=address.port or 80,
        model=str(card["id"]),
        version=version,
        context_tokens=int(card["max_model_len"]),
        block_size=_read_cache_label(metrics, "block_size", url),
        kv_blocks=_read_cache_label(metrics, "num_gpu_blocks", url),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        pids=pids or [],
    )


def _read_cache_label(metrics: str, name: str, url: str) -> int:
    found = re.search(rf'vllm:cache_config_info{{[^}}]*\b{name}="(\d+)"', metrics)
    if found is None:
        raise TargetUnfitError(f"{url}/metrics does not tell {name}")
    return int(found.group(1))


def read_prefix_hits(target: Target) -> float:
    """Prompt tokens found in the cache since the engine started."""
    text = httpx.get(f"{target.url}/metrics", trust_env=False, timeout=10.0).text
    return sum(float(value) for value in re.findall(r"^vllm:prefix_cache_hits_total{[^}]*} (\S+)$", text, re.MULTILINE))
