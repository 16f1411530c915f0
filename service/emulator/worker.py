"""Holds the state of one emulated worker: engine, connections, requests in flight, faults, and how it shuts down."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from itertools import count

from service.emulator.answers import Answer, Dialect
from service.emulator.chat import ChatDialect
from service.emulator.completions import CompletionDialect
from service.emulator.config import EmulatorConfig
from service.emulator.connection import Connection
from service.emulator.engine import Engine
from service.emulator.exchange import Exchange, Headers
from service.emulator.exposition import Exposition
from service.emulator.faults import CONNECTION_FAULTS, Fault, FaultBoard, FaultKind, parse_faults
from service.emulator.generation import Generation
from service.emulator.inspection import RequestLog
from service.emulator.intake import Api, Job
from service.emulator.messages import MessageDialect
from service.emulator.pump import EnginePump
from service.emulator.refusals import SHUTTING_DOWN, Refusal, build_busy, build_too_long
from service.emulator.responses import ResponseDialect
from service.emulator.script import build_script
from service.emulator.steps import EngineRequest, StepResult
from service.emulator.template import count_tokens, hash_blocks
from service.emulator.writing import Writer

DIALECTS: dict[Api, type[Dialect]] = {
    Api.CHAT: ChatDialect,
    Api.COMPLETIONS: CompletionDialect,
    Api.RESPONSES: ResponseDialect,
    Api.MESSAGES: MessageDialect,
}
ID_PREFIXES = {Api.CHAT: "chatcmpl-", Api.COMPLETIONS: "cmpl-", Api.RESPONSES: "resp_", Api.MESSAGES: "chatcmpl-"}


class EmulatedWorker:
    """One worker on one event loop. ``routes.Router`` decides which request means what."""

    def __init__(self, config: EmulatorConfig, loop: asyncio.AbstractEventLoop) -> None:
        config.check()
        self.config = config
        self.loop = loop
        self.profile = config.engine_profile()
        self.engine = Engine(self.profile, config.engine_config(), random.Random(config.seed))
        # The emulator is a process of its own: vLLM stamps `created` and `date` with the wall clock.
        self.wall_clock = time.time  # noqa: TID251
        self.exposition = Exposition(self.profile, config.model, config.context_tokens(), self.wall_clock())
        self.faults = FaultBoard(parse_faults(config.fault))
        self.log = RequestLog(config.request_log)
        self.connections: set[Connection] = set()
        self.generations: set[Generation] = set()
        self.draining = False
        self.drained = asyncio.Event()
        self.keep_alive_s = config.keep_alive_s()
        self.options = config.answer_options()
        self._pump = EnginePump(self.engine, loop, self._on_step)
        self._places: dict[str, tuple[Generation, int]] = {}
        self._serials = count()
        self._identities = random.Random(config.seed ^ 0x5EED)
        self._kv_blocks = config.kv_blocks or self.profile.kv_blocks
        self.apply_faults()

    # ------------------------------------------------------------------ connections

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def refuses_reuse(self) -> bool:
        return bool(self.faults.choose("/", CONNECTION_FAULTS))

    def build_identity(self, wanted: str | None) -> str:
        """A request id: the client's, or sixteen hexadecimal digits as vLLM's ``random_uuid``."""
        return wanted or f"{self._identities.getrandbits(64):016x}"

    # ------------------------------------------------------------------ requests

    def generate(self, exchange: Exchange, job: Job, faults: tuple[Fault, ...], headers: Headers) -> None:
        """Take a request in, or raise the refusal."""
        kinds = {fault.kind for fault in faults}
        if FaultKind.ENGINE_DEAD in kinds:
            message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            raise Refusal(500, message, "InternalServerError")
        tokens = [count_tokens(prompt) for prompt in job.prompts]
        if not min(tokens):
            raise Refusal(400, "The decoder prompt cannot be empty")
        limit = self.config.context_tokens()
        if max(tokens) >= limit:
            raise build_too_long(limit, max(tokens), job.is_text)
        if self.draining and self.config.engine_version == "0.32":
            raise Refusal(500, SHUTTING_DOWN, "InternalServerError")
        reason = self.engine.choose_refusal(job.choices * len(job.prompts))
        if reason is not None:
            self.exposition.tally.rejections[str(reason)] += 1
            raise build_busy(reason)
        answer_id = self._name(exchange, job)
        generation = self._build(exchange, job, answer_id, tokens, faults, headers)
        if exchange.record is not None:
            exchange.record.answer_id = answer_id
        if self.draining or FaultKind.ABORT_FINISH in kinds:
            generation.begin()
            generation.finish_empty("abort")
            return
        self._submit(generation, job, tokens)

    def _name(self, exchange: Exchange, job: Job) -> str:
        """The answer's id. The Responses API takes one only from the body, and as it is."""
        if job.api is Api.RESPONSES:
            return job.request_id or ID_PREFIXES[job.api] + self.build_identity(None)
        return ID_PREFIXES[job.api] + self.build_identity(exchange.header(b"x-request-id") or job.request_id or None)

    def _build(
        self,
        exchange: Exchange,
        job: Job,
        answer_id: str,
        tokens: list[int],
        faults: tuple[Fault, ...],
        headers: Headers,
    ) -> Generation:
        room = self.config.context_tokens() - max(tokens)
        obey = self.config.output == "max"
        total = job.choices * len(job.prompts)
        scripts = [build_script(job, choice, self.profile.output, room, obey) for choice in range(total)]
        answer = Answer(
            job=job,
            answer_id=answer_id,
            created=int(self.wall_clock()),
            model=self.config.model,
            options=self.options,
            prompt_tokens=sum(tokens),
            writers=[Writer(script) for script in scripts],
        )
        return Generation(exchange, answer, DIALECTS[job.api](), faults, headers)

    def _submit(self, generation: Generation, job: Job, tokens: list[int]) -> None:
        names: list[str] = []
        self.generations.add(generation)
        generation.exchange.on_ended = lambda: self._settle(generation, names)
        hashes = [hash_blocks(prompt, self.profile.block_size, job.cache_salt) for prompt in job.prompts]
        for choice, writer in enumerate(generation.answer.writers):
            prompt = choice // job.choices
            name = f"{next(self._serials)}"
            names.append(name)
            self._places[name] = (generation, choice)
            self._pump.submit(
                EngineRequest(
                    request_id=name,
                    prompt_tokens=tokens[prompt],
                    output_tokens=writer.script.total_tokens,
                    priority=job.priority,
                    block_hashes=hashes[prompt],
                )
            )
        if generation.slow_factor != 1.0:
            self.apply_faults()
        generation.begin()

    def _settle(self, generation: Generation, names: list[str]) -> None:
        """The exchange has ended, however: nothing of the request stays in the engine."""
        generation.over = True
        for name in names:
            if self._places.pop(name, None) is not None:
                self._pump.abort(name)
        self.generations.discard(generation)
        if generation.slow_factor != 1.0:
            self.apply_faults()
        if self.draining and not self.generations:
            self.drained.set()

    # ------------------------------------------------------------------ steps

    def _on_step(self, result: StepResult) -> None:
        """Hot: hand the tokens of a step to their streams."""
        tally = self.exposition.tally
        tally.observe_step(result)
        finished = {done.request_id: done for done in result.finished} if result.finished else {}
        for name, _, cached in result.first_tokens:
            if cached and name in self._places:
                self._places[name][0].answer.cached_tokens = cached
        places = self._places
        for name, tokens in result.tokens:
            place = places.get(name)
            if place is None:
                continue
            done = finished.get(name)
            generation, choice = place
            if done is not None:
                del places[name]
                script = generation.answer.writers[choice].script
                tally.observe_finished(
                    done, script.finish_reason, generation.answer.job.max_tokens or done.output_tokens
                )
            generation.observe(choice, tokens, done)
        for name in result.aborted:
            place = places.pop(name, None)
            if place is not None:  # the engine gave it up: it can never fit
                place[0].finish_empty("abort")

    # ------------------------------------------------------------------ faults and the end

    def apply_faults(self) -> None:
        """Put the board's conditions on the engine."""
        slow = max((generation.slow_factor for generation in self.generations), default=1.0)
        self.engine.change(self.faults.conditions(slow, self._kv_blocks))
        self._pump.freeze(self.faults.holds(FaultKind.FREEZE_ENGINE))

    async def shut_down(self) -> None:
        """What SIGTERM does: drain for ``shutdown_timeout`` seconds, then cut what is left."""
        self.draining = True
        if self.config.shutdown_timeout > 0 and self.generations:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.drained.wait(), self.config.shutdown_timeout)
        self._pump.stop()
        for connection in tuple(self.connections):
            connection.shut()
