"""The corridor's routes: which paths run inference, and in which dialect each speaks."""

from dataclasses import dataclass

from service.gateway.responses import MESSAGES, OPENAI, RESPONSES, ApiDialect


@dataclass(frozen=True, slots=True)
class Route:
    """One inference route.

    ``target`` is the request line without its version. ``usage_on_request``: streams carry usage only if the body
    asks for it. ``salted``: the body takes a ``cache_salt``. ``names_response``: we choose the id of the response.
    """

    kind: str
    target: bytes
    dialect: ApiDialect
    usage_on_request: bool = False
    salted: bool = True
    model_required: bool = True
    names_response: bool = False


def _route(
    path: str, dialect: ApiDialect, usage_on_request: bool = False, salted: bool = True, model_required: bool = True
) -> tuple[bytes, Route]:
    kind = path.removeprefix("/v1/").removeprefix("/").replace("/", "_")
    return path.encode(), Route(kind, b"POST " + path.encode(), dialect, usage_on_request, salted, model_required)


ROUTES: dict[bytes, Route] = dict(
    [
        _route("/v1/chat/completions", OPENAI, usage_on_request=True),
        _route("/v1/completions", OPENAI, usage_on_request=True),
        (b"/v1/responses", Route("responses", b"POST /v1/responses", RESPONSES, names_response=True)),
        _route("/v1/messages", MESSAGES),
        _route("/v1/messages/count_tokens", MESSAGES, salted=False),
        _route("/v1/embeddings", OPENAI, salted=False),
        _route("/tokenize", OPENAI, salted=False, model_required=False),
        _route("/detokenize", OPENAI, salted=False, model_required=False),
    ]
)

RESPONSE_PREFIX = b"/v1/responses/"
"""``GET /v1/responses/{id}`` and ``POST /v1/responses/{id}/cancel`` go to the worker that made the response."""

STORED = Route("responses_stored", b"", RESPONSES, salted=False, model_required=False)
