"""Decides what each path of the worker answers."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import parse_qs, unquote

import msgspec

from service.emulator.bodies import parse_json, require
from service.emulator.exchange import Exchange, Headers
from service.emulator.faults import FAULT_HEADER, PROBE_FAULTS, Fault, FaultKind, parse_faults
from service.emulator.fields import Fields, as_fields, as_int, as_list, as_text
from service.emulator.intake import READERS, Api, read_message
from service.emulator.refusals import UNSUPPORTED_MEDIA, Refusal, Unrouted, build_unknown_model
from service.emulator.template import count_tokens, decode, encode, render_chat
from service.emulator.worker import EmulatedWorker

JSON = b"application/json"
TEXT = b"text/plain; version=0.0.4; charset=utf-8"
LOAD_REPORTED = ("/v1/chat/completions", "/v1/completions")
GUARDED = ("/v1", "/v2", "/inference", "/cohere")
HTML_502 = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>Bad Gateway</body>\r\n</html>\r\n"
GARBAGE = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is not HTTP \xff\xfe\r\n\r\n"

encode_json = msgspec.json.encode


class Router:
    """The worker's front: guards, faults, then the path."""

    def __init__(self, worker: EmulatedWorker) -> None:
        self._worker = worker
        self._apis = {str(api): api for api in Api}
        self._get: dict[str, Callable[[Exchange], None]] = {
            "/health": self._health,
            "/ping": self._health,
            "/load": self._load,
            "/metrics": self._metrics,
            "/version": self._version,
            "/v1/models": self._models,
            "/emulator/faults": self._show_faults,
            "/emulator/requests": self._show_requests,
        }
        self._post: dict[str, Callable[[Exchange], None]] = {
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/ping": self._health,
            "/v1/messages/count_tokens": self._count_tokens,
            "/emulator/faults": self._replace_faults,
        }

    def answer(self, exchange: Exchange) -> None:
        """Answer a request, now or as its tokens come."""
        anthropic = exchange.path.startswith("/v1/messages")
        if self._worker.config.enable_request_id_headers:
            identity = self._worker.build_identity(exchange.header(b"x-request-id"))
            exchange.standing.append((b"x-request-id", identity.encode("latin-1", "replace")))
        try:
            self._dispatch(exchange)
        except Unrouted as unrouted:
            allow: Headers = [(b"allow", unrouted.allow.encode())] if unrouted.allow else []
            exchange.respond(unrouted.status, encode_json({"detail": unrouted.detail}), JSON, allow)
        except Refusal as refusal:
            body = refusal.anthropic_body() if anthropic and refusal.kind != "Bad Request" else refusal.body()
            exchange.respond(refusal.status, body, JSON)

    def _dispatch(self, exchange: Exchange) -> None:
        path = exchange.path
        if not self._authorised(exchange):
            exchange.respond(401, b'{"error":"Unauthorized"}', JSON)
            return
        api = self._apis.get(path)
        if api is not None and exchange.method == "POST":
            self._generate(exchange, api)
            return
        if path.startswith("/v1/responses/"):
            self._stored_response(exchange)
            return
        known = {"GET": self._get, "POST": self._post}.get(exchange.method, {}).get(path)
        if known is not None:
            known(exchange)
        elif api is not None or path in self._post:
            raise Unrouted(405, "Method Not Allowed", "POST")
        elif path in self._get:
            raise Unrouted(405, "Method Not Allowed", "GET")
        else:  # an embedding route is not registered for a model that only generates
            raise Unrouted(404, "Not Found")

    # ------------------------------------------------------------------ generation

    def _generate(self, exchange: Exchange, api: Api) -> None:
        faults = self._choose_faults(exchange)
        if any(self._refuse_by_fault(exchange, fault) for fault in faults):
            return
        job = READERS[api](self._read(exchange))
        self._check_model(job.model)
        header = exchange.header(b"x-vllm-priority")
        if header is not None and header.removeprefix("-").isdecimal():
            job = replace(job, priority=int(header))
        if api is Api.RESPONSES and as_fields(job.body).get("background"):
            message = (
                "This vLLM engine does not support `store=True` and therefore does not support the background mode. "
                "To enable these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when "
                "launching the vLLM server."
            )
            raise Refusal(400, message, "invalid_request_error", "background")
        self._worker.generate(exchange, job, faults, self._headers(exchange, job.stream))

    def _choose_faults(self, exchange: Exchange) -> tuple[Fault, ...]:
        faults = self._worker.faults.choose(exchange.path)
        for name, value in exchange.headers:
            if name == FAULT_HEADER:
                try:
                    faults += parse_faults(value.decode("latin-1"))
                except ValueError as error:
                    raise Refusal(400, f"{FAULT_HEADER.decode()}: {error}") from error
        return faults

    def _refuse_by_fault(self, exchange: Exchange, fault: Fault) -> bool:
        """Faults that are a whole answer."""
        kind = fault.kind
        if kind is FaultKind.UNAVAILABLE:
            raise Refusal(503, "emulated: service unavailable", "Service Unavailable")
        if kind is FaultKind.BAD_REQUEST:
            raise Refusal(400, "emulated: bad request")
        if kind is FaultKind.TOO_MANY:
            body = Refusal(429, "emulated: too many requests", "Too Many Requests").body()
            exchange.respond(429, body, JSON, [(b"retry-after", b"%d" % max(1, round(fault.delay_s)))])
            return True
        if kind is FaultKind.BAD_GATEWAY:
            exchange.respond(502, HTML_502, b"text/html")
            return True
        if kind is FaultKind.GARBAGE:
            exchange.raw(GARBAGE)
            return True
        return False

    def _stored_response(self, exchange: Exchange) -> None:
        """vLLM keeps no responses unless told to by an environment variable: every lookup fails."""
        name, _, action = exchange.path.removeprefix("/v1/responses/").partition("/")
        method = {"": "GET", "cancel": "POST"}.get(action)
        if method is None:
            raise Unrouted(404, "Not Found")
        if exchange.method != method:
            raise Unrouted(405, "Method Not Allowed", method)
        message = f"Response with id '{unquote(name)}' not found."
        raise Refusal(404, message, "invalid_request_error", "response_id")

    # ------------------------------------------------------------------ the rest of vLLM

    def _health(self, exchange: Exchange) -> None:
        kinds = {fault.kind: fault for fault in self._worker.faults.choose(exchange.path, PROBE_FAULTS)}
        if FaultKind.FREEZE_HEALTH in kinds:
            return
        status = 503 if FaultKind.ENGINE_DEAD in kinds else 200
        delay = kinds.get(FaultKind.DELAY_HEALTH)
        if delay is None:
            exchange.respond(status, b"", None)
        else:
            self._worker.loop.call_later(delay.delay_s, exchange.respond, status, b"", None)

    def _load(self, exchange: Exchange) -> None:
        load = len(self._worker.generations) if self._worker.config.enable_server_load_tracking else 0
        exchange.respond(200, encode_json({"server_load": load}), JSON)

    def _metrics(self, exchange: Exchange) -> None:
        exchange.respond(200, self._worker.exposition.render(self._worker.engine.stats()), TEXT)

    def _version(self, exchange: Exchange) -> None:
        exchange.respond(200, encode_json({"version": f"{self._worker.config.engine_version}.0"}), JSON)

    def _models(self, exchange: Exchange) -> None:
        created = int(self._worker.wall_clock())
        permission: Fields = {
            "id": f"modelperm-{self._worker.build_identity(None)}",
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model: Fields = {
            "id": self._worker.config.model,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": self._worker.config.model,
            "parent": None,
            "max_model_len": self._worker.config.context_tokens(),
            "permission": [permission],
        }
        exchange.respond(200, encode_json({"object": "list", "data": [model]}), JSON)

    def _tokenize(self, exchange: Exchange) -> None:
        body = self._read(exchange)
        self._check_model(as_text(body.get("model")))
        if "messages" in body:
            text = render_chat(as_list(body["messages"]), as_list(body.get("tools")), open_last=False)
        else:
            text = as_text(require(body, "prompt")).encode("utf-8", "replace")
        ids = encode(text)
        strings = [decode([token]) for token in ids] if body.get("return_token_strs") else None
        limit = self._worker.config.context_tokens()
        answer: Fields = {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": strings}
        exchange.respond(200, encode_json(answer), JSON)

    def _detokenize(self, exchange: Exchange) -> None:
        body = self._read(exchange)
        self._check_model(as_text(body.get("model")))
        ids = [token for raw in as_list(require(body, "tokens")) if (token := as_int(raw)) is not None]
        exchange.respond(200, encode_json({"prompt": decode(ids)}), JSON)

    def _count_tokens(self, exchange: Exchange) -> None:
        job = read_message(self._read(exchange), counting=True)
        self._check_model(job.model)
        tokens = count_tokens(job.prompts[0])
        counted: Fields = {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}
        exchange.respond(200, encode_json(counted), JSON)

    # ------------------------------------------------------------------ the emulator's own

    def _show_faults(self, exchange: Exchange) -> None:
        exchange.respond(200, encode_json(self._worker.faults.show()), JSON)

    def _replace_faults(self, exchange: Exchange) -> None:
        try:
            self._worker.faults.replace(parse_json(exchange.body))
        except ValueError as error:
            raise Refusal(400, str(error)) from error
        self._worker.apply_faults()
        self._show_faults(exchange)

    def _show_requests(self, exchange: Exchange) -> None:
        query = parse_qs(exchange.target.partition("?")[2])
        since = query.get("since", [""])[0]
        shown = self._worker.log.show(int(since) if since.isdecimal() else -1)
        exchange.respond(200, encode_json(shown), JSON)

    # ------------------------------------------------------------------ shared

    def _authorised(self, exchange: Exchange) -> bool:
        key = self._worker.config.api_key
        if not key or exchange.method == "OPTIONS" or not exchange.path.startswith(GUARDED):
            return True
        scheme, _, token = (exchange.header(b"authorization") or "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.encode(), key.encode())

    def _read(self, exchange: Exchange) -> Fields:
        kind = (exchange.header(b"content-type") or "").lower().partition(";")[0].strip()
        if kind != "application/json":
            raise Refusal(400, UNSUPPORTED_MEDIA, "Bad Request")
        return parse_json(exchange.body)

    def _check_model(self, model: str) -> None:
        served = self._worker.config.model
        if model and model != served:
            raise build_unknown_model(model, served)

    def _headers(self, exchange: Exchange, stream: bool) -> Headers:
        """vLLM reports its load in the answers of chat and completions that are not streamed."""
        wanted = exchange.header(b"endpoint-load-metrics-format")
        if wanted and wanted.lower() in ("json", "text") and not stream and exchange.path in LOAD_REPORTED:
            return self._load_report(wanted.lower())
        return []

    def _load_report(self, form: str) -> Headers:
        stats = self._worker.engine.stats()
        values = {"num_requests_waiting": float(stats.waiting), "kv_cache_usage_perc": stats.kv_usage_ratio}
        if form == "json":
            report = b"JSON " + json.dumps({"named_metrics": values}).encode()
        else:
            report = ("TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in values.items())).encode()
        return [(b"endpoint-load-metrics", report)]
