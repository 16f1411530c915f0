"""Holds the options of an emulated worker; both command lines are built from these fields, so they cannot drift."""

from __future__ import annotations

import argparse
import os
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TypeVar, get_type_hints

from service.emulator.answers import AnswerOptions
from service.emulator.faults import parse_faults
from service.emulator.profile_file import ProfileFault, is_file_name, load_profile
from service.emulator.profiles import PROFILES, EngineProfile
from service.emulator.steps import EngineConfig

DEFAULT_MODEL = "MiniMax-M3.1-Flash"
ENGINE_VERSIONS = ("0.32", "0.33")
ORDERS = ("fcfs", "priority")
OUTPUTS = ("max", "lognormal")
DRAFT_METRICS = ("none", "summary")


class ConfigFault(ValueError):  # noqa: N818  (a fault of the configuration)
    """The options cannot be served; the message says which."""


T = TypeVar("T")


def option(text: str, default: T) -> T:
    """A field with its help text."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True, slots=True)
class EmulatorConfig:
    """Every option of one emulated worker, named as on the command line; vLLM's own names where vLLM has the option."""

    host: str = option("Address to listen on.", "127.0.0.1")
    port: int = option("Port to listen on; 0 takes a free one.", 9001)
    profile: str = option(
        f"Machine to emulate: {', '.join(PROFILES)}, or a file (.json, .yaml) as 'sluice bench calibrate' writes it.",
        "m3.1-flash",
    )
    model: str = option("Name the model is served under.", DEFAULT_MODEL)
    seed: int = option("Seed of the engine's chance (step noise, accepted drafts).", 0)
    engine_version: str = option("vLLM version to imitate while draining: 0.32 or 0.33.", "0.32")
    api_key: str = option("Bearer token that guards /v1; empty = open.", "")
    scheduling_policy: str = option("Order of the waiting list: fcfs or priority.", "fcfs")
    max_num_seqs: int = option("Requests running at once; 0 = the profile's.", 0)
    max_num_batched_tokens: int = option("Token budget of a step; 0 = the profile's.", 0)
    max_model_len: int = option("Context length; 0 = the profile's.", 0)
    kv_blocks: int = option("KV cache size in blocks; 0 = the profile's.", 0)
    max_num_queued_reqs: int = option("Valve: refuse above this many unfinished requests; 0 = off.", 0)
    max_num_queued_tokens: int = option("Valve: refuse once this many prompt tokens wait; 0 = off.", 0)
    shutdown_timeout: float = option("Seconds in-flight requests may finish after SIGTERM; 0 cuts.", 0.0)
    timeout_keep_alive: float = option(
        "Seconds an idle connection lives; negative = VLLM_HTTP_TIMEOUT_KEEP_ALIVE, else 5.", -1.0
    )
    output: str = option("Length of answers: max = max_tokens where given; lognormal = may end before.", "max")
    enable_per_request_metrics: bool = option("Add vLLM's metrics object to answers.", False)
    per_request_spec_decode_metrics: str = option("Draft figures in the metrics object: none or summary.", "none")
    enable_prompt_tokens_details: bool = option("Add cached_tokens to usage.", False)
    enable_force_include_usage: bool = option("Send usage in every chunk, asked or not.", False)
    enable_request_id_headers: bool = option("Answer with an X-Request-Id header.", False)
    enable_server_load_tracking: bool = option("Count requests for /load.", False)
    startup_delay: float = option("Seconds before the port is opened, as while weights load.", 0.0)
    fault: str = option("Faults from the start: KIND[;after=N][;factor=X][;delay_s=S][;times=N],...", "")
    request_log: int = option("Requests kept for GET /emulator/requests; 0 = none.", 256)

    def check(self) -> None:
        """All faults of the options at once."""
        faults: list[str] = []
        if (fault := self._find_profile_fault()) is not None:
            faults.append(f"profile: {fault}")
        elif self.per_request_spec_decode_metrics != "none" and not self.engine_profile().speculation.enabled:
            faults.append(f"per_request_spec_decode_metrics: profile {self.profile!r} does not speculate")
        for name, allowed in (
            ("engine_version", ENGINE_VERSIONS),
            ("scheduling_policy", ORDERS),
            ("output", OUTPUTS),
            ("per_request_spec_decode_metrics", DRAFT_METRICS),
        ):
            if getattr(self, name) not in allowed:
                faults.append(f"{name}: {getattr(self, name)!r} is none of {', '.join(allowed)}")
        if not 0 <= self.port <= 65535:
            faults.append(f"port: {self.port} is not between 0 and 65535")
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, int | float) and value < 0 and one.name not in ("timeout_keep_alive", "seed"):
                faults.append(f"{one.name}: {value} is negative")
        try:
            parse_faults(self.fault)
        except ValueError as error:
            faults.append(f"fault: {error}")
        if faults:
            raise ConfigFault("; ".join(faults))

    def _find_profile_fault(self) -> str | None:
        if not is_file_name(self.profile):
            return None if self.profile in PROFILES else f"{self.profile!r} is none of {', '.join(PROFILES)}"
        try:
            load_profile(self.profile)
        except ProfileFault as error:
            return str(error)
        return None

    def engine_profile(self) -> EngineProfile:
        return load_profile(self.profile) if is_file_name(self.profile) else PROFILES[self.profile]

    def engine_config(self) -> EngineConfig:
        return EngineConfig(
            priority_scheduling=self.scheduling_policy == "priority",
            max_num_seqs=self.max_num_seqs or None,
            max_num_batched_tokens=self.max_num_batched_tokens or None,
            kv_blocks=self.kv_blocks or None,
            max_num_queued_reqs=self.max_num_queued_reqs or None,
            max_num_queued_tokens=self.max_num_queued_tokens or None,
            trace_accepts=self.per_request_spec_decode_metrics == "summary",
        )

    def answer_options(self) -> AnswerOptions:
        return AnswerOptions(
            force_usage=self.enable_force_include_usage,
            prompt_details=self.enable_prompt_tokens_details,
            request_metrics=self.enable_per_request_metrics,
            reasoning_details=self.engine_profile().output.reasoning_ratio > 0,
            block_size=self.engine_profile().block_size,
            fingerprint=f"vllm-{self.engine_version}.0-emulated",
        )

    def context_tokens(self) -> int:
        return self.max_model_len or self.engine_profile().max_model_len

    def keep_alive_s(self) -> float:
        if self.timeout_keep_alive >= 0:
            return self.timeout_keep_alive
        return float(os.environ.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "5"))


def describe_options() -> list[tuple[str, type, object, str]]:
    """(field, type, default, help) of every option, in order."""
    hints = get_type_hints(EmulatorConfig)
    rows: list[tuple[str, type, object, str]] = []
    one: Field[object]
    for one in fields(EmulatorConfig):
        default = None if one.default is MISSING else one.default
        rows.append((one.name, hints[one.name], default, str(one.metadata.get("help", ""))))
    return rows


def parse_arguments(arguments: list[str] | None = None) -> EmulatorConfig:
    """The options of ``python -m service.emulator``; exits 2 on bad ones, as argparse does."""
    parser = argparse.ArgumentParser(prog="python -m service.emulator", description="One emulated vLLM worker.")
    for name, kind, default, text in describe_options():
        flag = "--" + name.replace("_", "-")
        if kind is bool:
            parser.add_argument(flag, action="store_true", help=text)
        else:
            parser.add_argument(flag, type=kind, default=default, help=f"{text} (default: {default!r})")
    config = EmulatorConfig(**vars(parser.parse_args(arguments)))
    try:
        config.check()
    except ConfigFault as error:
        parser.error(str(error))
    return config
