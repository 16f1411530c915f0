"""The corridor's routes: which paths run inference, and in which dialect each speaks."""

from dataclasses import dataclass
from typing import Any

from service.gateway.responses import MESSAGES, OPENAI, RESPONSES, ApiDialect


@dataclass(frozen=True, slots=True)
class Route:
    """One inference route.

    ``target`` is the request line without its version. ``usage_on_request``: streams carry usage only if the body
    asks for it. ``salted``: the body takes a ``cache_salt``. ``names_response``: we choose the id of the response.
    ``bounds``: the fields that bound the length of the answer, the first that is given counts. ``metered``: whether
    prompt and output are counted against the tenant's tokens.
    """

    kind: str
    target: bytes
    dialect: ApiDialect
    usage_on_request: bool = False
    salted: bool = True
    model_required: bool = True
    names_response: bool = False
    bounds: tuple[str, ...] = ("max_tokens",)
    metered: tuple[bool, bool] = (True, True)


def _route(path: str, dialect: ApiDialect, **traits: Any) -> tuple[bytes, Route]:  # noqa: ANN401 - Route's own fields
    kind = path.removeprefix("/v1/").removeprefix("/").replace("/", "_")
    return path.encode(), Route(kind, b"POST " + path.encode(), dialect, **traits)


ROUTES: dict[bytes, Route] = dict(
    [
        _route("/v1/chat/completions", OPENAI, usage_on_request=True, bounds=("max_completion_tokens", "max_tokens")),
        _route("/v1/completions", OPENAI, usage_on_request=True),
        _route("/v1/responses", RESPONSES, names_response=True, bounds=("max_output_tokens",)),
        _route("/v1/messages", MESSAGES),
        _route("/v1/messages/count_tokens", MESSAGES, salted=False, metered=(False, False)),
        _route("/v1/embeddings", OPENAI, salted=False, bounds=(), metered=(True, False)),
        _route("/tokenize", OPENAI, salted=False, model_required=False, bounds=(), metered=(False, False)),
        _route("/detokenize", OPENAI, salted=False, model_required=False, bounds=(), metered=(False, False)),
    ]
)

RESPONSE_PREFIX = b"/v1/responses/"
"""``GET /v1/responses/{id}`` and ``POST /v1/responses/{id}/cancel`` go to the worker that made the response."""

STORED = Route("responses_stored", b"", RESPONSES, salted=False, model_required=False)
