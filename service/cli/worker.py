"""``sluice worker``: plan, check and run one vLLM worker."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from service.launch.command import Seat, WorkerCommand, build_worker_command, format_shell
from service.launch.cpu_engine import build_cpu_worker_command, locate_cpu_engine, prepare_cpu_engine
from service.launch.fault import EngineUnavailableError, Fault, LaunchRefusedError
from service.launch.preflight import Check, Verdict, check_machine, is_ready
from service.launch.probe import probe_machine
from service.launch.profile import Device, KvDtype, WorkerProfile
from service.launch.profiles import (
    PROFILE_NAMES,
    Overrides,
    apply_overrides,
    build_cpu_small_profile,
    build_m31_flash_profile,
)
from service.runtime.clock import MonotonicClock

FAILED, BAD_INPUT = 1, 2

app = typer.Typer(
    name="worker",
    no_args_is_help=True,
    help="Plan, check and run one vLLM worker. Exit codes: 0 ok, 1 failed, 2 bad input.",
)

ProfileOption = Annotated[str, typer.Option("--profile", help=f"One of: {', '.join(PROFILE_NAMES)}.")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Path or name of the weights.")]
TensorOption = Annotated[int | None, typer.Option("--tensor-parallel", help="GPUs one copy of the model spans.")]
DataOption = Annotated[int | None, typer.Option("--data-parallel", help="Copies behind one server.")]
KvOption = Annotated[KvDtype | None, typer.Option("--kv-cache-dtype", help="How the KV cache is stored.")]
ContextOption = Annotated[int | None, typer.Option("--context-tokens", help="Longest prompt plus output.")]
RunningOption = Annotated[int | None, typer.Option("--running-requests", help="Requests computed at once.")]
InFlightOption = Annotated[
    int | None, typer.Option("--in-flight-requests", help="Running plus waiting, above which vLLM answers 503.")
]
BacklogOption = Annotated[
    int | None, typer.Option("--prefill-backlog-tokens", help="Prompt tokens in prefill, above which vLLM answers 503.")
]
GraceOption = Annotated[int | None, typer.Option("--shutdown-grace-s", help="Seconds running streams get at the end.")]
SpeculationOption = Annotated[str | None, typer.Option("--speculation", help="dspark, ngram or none.")]
GuessOption = Annotated[int | None, typer.Option("--guessed-tokens", help="Tokens guessed ahead (K).")]
ScheduleOption = Annotated[
    str | None, typer.Option("--schedule", help="K by batch size, as 1-32:7,33-128:3,129-1024:0; or off.")
]
NodesOption = Annotated[int | None, typer.Option("--nodes", min=1, help="Machines one worker spans.")]
RankOption = Annotated[int | None, typer.Option("--node-rank", min=0, help="Which of them this is; 0 answers.")]
LeaderOption = Annotated[str | None, typer.Option("--leader", help="Address of the machine of rank 0.")]
HostOption = Annotated[str, typer.Option("--host", help="Address to listen on.")]
PortOption = Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")]
PythonOption = Annotated[
    Path | None, typer.Option("--engine-python", help="Python that has vLLM; this one if left out.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a script.")]


@app.command()
def plan(
    profile: ProfileOption = "m3.1-flash",
    model: ModelOption = None,
    tensor_parallel: TensorOption = None,
    data_parallel: DataOption = None,
    nodes: NodesOption = None,
    node_rank: RankOption = None,
    leader: LeaderOption = None,
    kv_dtype: KvOption = None,
    context_tokens: ContextOption = None,
    running_requests: RunningOption = None,
    in_flight_requests: InFlightOption = None,
    prefill_backlog_tokens: BacklogOption = None,
    shutdown_grace_s: GraceOption = None,
    speculation: SpeculationOption = None,
    guessed_tokens: GuessOption = None,
    schedule: ScheduleOption = None,
    host: HostOption = "0.0.0.0",  # noqa: S104 - a worker in its pod listens for the gateway; a NetworkPolicy guards it
    port: PortOption = 8000,
    as_json: JsonOption = False,
) -> None:
    """Print the command line and environment that start the profile."""
    overrides = Overrides(
        model=model,
        tensor_parallel=tensor_parallel,
        nodes=nodes,
        data_parallel=data_parallel,
        kv_dtype=kv_dtype,
        context_tokens=context_tokens,
        running_requests=running_requests,
        in_flight_requests=in_flight_requests,
        prefill_backlog_tokens=prefill_backlog_tokens,
        shutdown_grace_s=shutdown_grace_s,
        speculation=speculation,
        guessed_tokens=guessed_tokens,
        schedule=schedule,
    )
    try:
        command = _build_command(_build_profile(profile, overrides), host, port, None, _seat(node_rank, leader))
    except LaunchRefusedError as refused:
        _refuse(refused.faults)
    if as_json:
        print(json.dumps({"argv": command.argv, "environment": dict(command.environment)}, indent=2))
    else:
        print(format_shell(command))


@app.command()
def preflight(
    profile: ProfileOption = "m3.1-flash",
    model: ModelOption = None,
    tensor_parallel: TensorOption = None,
    nodes: NodesOption = None,
    kv_dtype: KvOption = None,
    context_tokens: ContextOption = None,
    speculation: SpeculationOption = None,
    schedule: ScheduleOption = None,
    engine_python: PythonOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check this machine against the profile; exit 1 if a worker must not be started here."""
    overrides = Overrides(
        model=model,
        tensor_parallel=tensor_parallel,
        nodes=nodes,
        kv_dtype=kv_dtype,
        context_tokens=context_tokens,
        speculation=speculation,
        schedule=schedule,
    )
    try:
        wanted = _build_profile(profile, overrides)
    except LaunchRefusedError as refused:
        _refuse(refused.faults)
    checks = _check(wanted, engine_python)
    if as_json:
        found = [{"name": c.name, "verdict": c.verdict, "message": c.message, "cure": c.cure} for c in checks]
        print(json.dumps({"profile": wanted.name, "ready": is_ready(checks), "checks": found}, indent=2))
    else:
        _show(wanted, checks)
    if not is_ready(checks):
        raise typer.Exit(FAILED)


@app.command()
def run(
    profile: ProfileOption = "m3.1-flash",
    model: ModelOption = None,
    tensor_parallel: TensorOption = None,
    nodes: NodesOption = None,
    node_rank: RankOption = None,
    leader: LeaderOption = None,
    kv_dtype: KvOption = None,
    context_tokens: ContextOption = None,
    running_requests: RunningOption = None,
    speculation: SpeculationOption = None,
    schedule: ScheduleOption = None,
    shutdown_grace_s: GraceOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    engine_python: PythonOption = None,
    force: Annotated[bool, typer.Option("--force", help="Start although the preflight failed.")] = False,
) -> None:
    """Check this machine, then become the worker (this process is replaced by vLLM's)."""
    overrides = Overrides(
        model=model,
        tensor_parallel=tensor_parallel,
        nodes=nodes,
        kv_dtype=kv_dtype,
        context_tokens=context_tokens,
        running_requests=running_requests,
        shutdown_grace_s=shutdown_grace_s,
        speculation=speculation,
        schedule=schedule,
    )
    try:
        wanted = _build_profile(profile, overrides)
        command = _build_command(wanted, host, port, engine_python, _seat(node_rank, leader))
        if wanted.device is Device.CPU:
            prepare_cpu_engine(_say, MonotonicClock().now)
    except LaunchRefusedError as refused:
        _refuse(refused.faults)
    except EngineUnavailableError as unavailable:
        _say(str(unavailable))
        raise typer.Exit(FAILED) from unavailable
    checks = _check(wanted, engine_python)
    if not is_ready(checks) and not force:
        _show(wanted, checks)
        raise typer.Exit(FAILED)
    _become(command)


def _build_profile(name: str, overrides: Overrides) -> WorkerProfile:
    match name:
        case "m3.1-flash":
            shipped = build_m31_flash_profile()
        case "cpu-small":
            shipped = build_cpu_small_profile(locate_cpu_engine().model_dir)
        case unknown:
            raise LaunchRefusedError(
                [Fault("--profile", f"{unknown!r} does not exist", f"use {' or '.join(PROFILE_NAMES)}")]
            )
    return apply_overrides(shipped, overrides)


def _seat(rank: int | None, leader: str | None) -> Seat | None:
    return None if rank is None and leader is None else Seat(-1 if rank is None else rank, leader or "")


def _build_command(
    profile: WorkerProfile, host: str, port: int, engine_python: Path | None, seat: Seat | None
) -> WorkerCommand:
    if profile.device is Device.CPU:
        return build_cpu_worker_command(locate_cpu_engine(), port, host=host, profile=profile)
    launcher = (str(engine_python.parent / "vllm"),) if engine_python else ("vllm",)
    return build_worker_command(profile, port=port, host=host, launcher=launcher, seat=seat)


def _check(profile: WorkerProfile, engine_python: Path | None) -> tuple[Check, ...]:
    if profile.device is Device.CPU:
        engine = locate_cpu_engine()
        return check_machine(profile, probe_machine(engine.python if engine.is_built else None))
    return check_machine(profile, probe_machine(engine_python or Path(sys.executable)))


def _show(profile: WorkerProfile, checks: tuple[Check, ...]) -> None:
    marks = {Verdict.PASSED: "ok     ", Verdict.WARNING: "warning", Verdict.FAILED: "FAILED "}
    for check in checks:
        print(f"{marks[check.verdict]}  {check.name}: {check.message}")
        if check.cure and check.verdict is not Verdict.PASSED:
            print(f"         -> {check.cure}")
    failed = sum(check.verdict is Verdict.FAILED for check in checks)
    print(f"{profile.name}: " + (f"not ready, {failed} check(s) failed" if failed else "ready"))


def _refuse(faults: tuple[Fault, ...]) -> NoReturn:
    for fault in faults:
        _say(str(fault))
    raise typer.Exit(BAD_INPUT)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _become(command: WorkerCommand) -> NoReturn:
    try:
        os.execvpe(command.argv[0], command.argv, {**os.environ, **dict(command.environment)})  # noqa: S606
    except OSError as error:
        _say(f"{command.argv[0]} cannot be started: {error}")
        raise typer.Exit(FAILED) from error
