"""NVIDIA's aiperf against a running service: an unmodified load tool must complete without an error.

``python -m loadtests.live.aiperf_run`` installs aiperf into an environment of its own in the cache folder (once per
lock file, a minute or two), starts a service, sends the requests, prints a short table, writes JSON under
``loadtests/reports`` and exits 1 if a request failed. The service is ``sluice up`` with one worker: a real vLLM on the
CPU where that engine has been built, whose model brings its tokenizer; else an emulated one, with the tokenizer that
aiperf carries. ``--engine`` chooses, and ``--url --api-key --model --tokenizer`` point it at a service that runs.

aiperf must not see ``HF_HUB_OFFLINE``: its offline path takes a local tokenizer folder for a repository name (0.13.0).
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtests.live.child import ChildError, choose_free_ports, interrupt_on_sigterm, quote_end, run_child
from service.launch.cache import build_once, compute_key, default_cache_dir
from service.launch.cpu_engine import locate_cpu_engine
from service.launch.environment import EnvironmentRecipe, build_environment, python_series
from service.launch.fault import EngineUnavailableError
from service.launch.profiles import SERVED_MODEL_NAME

LOCK = Path(__file__).parent / "aiperf.lock"
REPORT = Path(__file__).parents[1] / "reports" / "aiperf.json"
RUN_LIMIT_S = 900
START_LIMIT_S = 300
STOP_LIMIT_S = 60
FIRST_PORT = 33000
BUILTIN_TOKENIZER = "builtin"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What aiperf talks to, and the tokenizer it counts with."""

    url: str
    api_key: str
    model: str
    tokenizer: str


def choose_engine() -> str:
    """The real engine where it is there already: building it takes longer than anything measured here."""
    return "vllm-cpu" if locate_cpu_engine().is_built else "emulated"


@contextmanager
def run_service(engine: str, folder: Path) -> Iterator[Endpoint]:
    """``sluice up`` with one worker until the block ends, then told to stop as by Ctrl-C."""
    port, admin_port = choose_free_ports(FIRST_PORT, 2)
    argv = [sys.executable, "-m", "service", "up", "--engine", engine, "--workers", "1", "--dir", str(folder / "up")]
    argv += ["--port", str(port), "--admin-port", str(admin_port)]
    log = folder / "up.log"
    tokenizer = str(locate_cpu_engine().model_dir) if engine == "vllm-cpu" else BUILTIN_TOKENIZER
    with run_child(argv, log) as process:
        said = await_ready(process, log)
        key = re.search(r"key for tier priority: +(\S+)", said)
        model = re.search(r"^ready: .*, model ([^,]+),", said, re.MULTILINE)
        if key is None or model is None:
            raise ChildError(f"no key or model is in what the service says: {quote_end(log)}")
        yield Endpoint(f"http://127.0.0.1:{port}", key[1], model[1], tokenizer)
        process.send_signal(signal.SIGINT)
        process.wait(STOP_LIMIT_S)


def await_ready(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """What the service said until it was ready."""
    give_up_at = time.monotonic() + START_LIMIT_S
    while time.monotonic() < give_up_at:
        said = log.read_text(errors="replace")
        if "Ctrl-C drains" in said:
            return said
        if process.poll() is not None:
            raise ChildError(f"the service ended with code {process.returncode}: {quote_end(log)}")
        time.sleep(0.2)
    raise ChildError(f"the service was not ready within {START_LIMIT_S} s: {quote_end(log)}")


# Figures worth a line: aiperf's name, ours, the statistics to show.
FIGURES = (
    ("request_throughput", "requests per second", ("avg",)),
    ("output_token_throughput", "output tokens per second", ("avg",)),
    ("time_to_first_token", "TTFT ms", ("p50", "p99")),
    ("inter_token_latency", "ITL ms", ("p50", "p99")),
    ("request_latency", "E2E ms", ("p50", "p99")),
)


def prepare_aiperf() -> Path:
    """Return the aiperf program, installing it if it is not there yet."""
    target = default_cache_dir() / f"aiperf-{compute_key(LOCK.read_text(), python_series())}"
    recipe = EnvironmentRecipe("aiperf", LOCK, expected_s=75)

    def build(scratch: Path) -> None:
        build_environment(recipe, scratch, target, say=say, clock=time.monotonic)

    return build_once(target, build, say) / "bin" / "aiperf"


def run_aiperf(program: Path, service: Endpoint, options: argparse.Namespace, artifacts: Path) -> dict[str, Any]:
    """Send the load and return aiperf's own summary."""
    argv = [
        str(program),
        "profile",
        *("--model", service.model, "--url", service.url, "--endpoint-type", "chat", "--streaming"),
        *("--api-key", service.api_key, "--tokenizer", service.tokenizer),
        *("--request-count", str(options.requests), "--concurrency", str(options.concurrency)),
        *("--synthetic-input-tokens-mean", str(options.input_tokens)),
        *("--output-tokens-mean", str(options.output_tokens), "--extra-inputs", "ignore_eos:true"),
        *("--ui", "none", "--random-seed", "1", "--artifact-dir", str(artifacts)),
    ]
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    done = subprocess.run(  # noqa: S603 - our own argv
        argv, env=environment, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False
    )
    summary = artifacts / "profile_export_aiperf.json"
    if done.returncode != 0 or not summary.exists():
        raise EngineUnavailableError(
            f"aiperf ended with code {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
        )
    told: dict[str, Any] = json.loads(summary.read_text())
    return told


def summarise(told: dict[str, Any], requests: int) -> dict[str, Any]:
    """Reduce aiperf's summary to what the report keeps."""
    failed = int((told.get("error_request_count") or {}).get("avg", 0))
    figures = {
        title: {statistic: told[name][statistic] for statistic in statistics}
        for name, title, statistics in FIGURES
        if name in told
    }
    completed = int((told.get("request_count") or {}).get("avg", 0))
    return {
        "tool": f"aiperf {told['aiperf_version']}",
        "asked": requests,
        "completed": completed,
        "failed": failed,
        "errors": told.get("error_summary", []),
        "figures": figures,
    }


def show(report: dict[str, Any]) -> None:
    """Print the table."""
    print(f"{report['tool']}: {report['completed']} of {report['asked']} completed, {report['failed']} failed")
    for title, statistics in report["figures"].items():
        print(f"  {title:28}" + "  ".join(f"{name} {value:10.2f}" for name, value in statistics.items()))
    for error in report["errors"]:
        print(f"  {error['count']} x {error['error_details']['message']}")


def say(line: str) -> None:
    """Report progress where it does not mix with the table."""
    print(line, file=sys.stderr, flush=True)


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", help="base URL of a service that runs, without /v1; else one is started")
    parser.add_argument("--engine", choices=("emulated", "vllm-cpu"), help="of the service that is started")
    parser.add_argument("--api-key", default="unused")
    parser.add_argument("--model", default=SERVED_MODEL_NAME)
    parser.add_argument(
        "--tokenizer", default=str(locate_cpu_engine().model_dir), help="folder of the model's tokenizer"
    )
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--input-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=16)
    parser.add_argument("--report", type=Path, default=REPORT)
    return parser.parse_args()


@contextmanager
def find_service(options: argparse.Namespace, engine: str, folder: Path) -> Iterator[Endpoint]:
    """The service the options name, or one of our own."""
    if options.url is not None:
        yield Endpoint(options.url, options.api_key, options.model, options.tokenizer)
        return
    say(f"starting a service with one {engine} worker")
    with run_service(engine, folder) as service:
        yield service


def main() -> int:
    """Install, run, report."""
    options = parse_options()
    interrupt_on_sigterm()
    engine = options.engine or choose_engine()
    try:
        program = prepare_aiperf()
        with tempfile.TemporaryDirectory() as name, find_service(options, engine, Path(name)) as service:
            say(f"aiperf: {options.requests} requests to {service.url}, {options.concurrency} at a time")
            report = summarise(run_aiperf(program, service, options, Path(name) / "artifacts"), options.requests)
        report["engine"] = engine if options.url is None else None
    except (ChildError, EngineUnavailableError, subprocess.TimeoutExpired) as error:
        say(str(error))
        return 1
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(json.dumps(report, indent=2) + "\n")
    show(report)
    return 0 if (report["completed"], report["failed"]) == (options.requests, 0) else 1


if __name__ == "__main__":
    sys.exit(main())
