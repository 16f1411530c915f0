"""Renders ``deploy/ERRORS.md`` from the table of outcomes: ``python -m tests.support.errors_page`` writes it."""

from pathlib import Path

from service.domain.outcome import Fault, Outcome
from service.gateway.edge import HEAD_TOO_LARGE, NOT_HTTP, TOO_MANY
from service.gateway.responses import TELLINGS, shape_anthropic

PAGE = Path(__file__).parents[2] / "deploy" / "ERRORS.md"
SLA = {Fault.NONE: "good", Fault.CLIENT: "excluded", Fault.CAPACITY: "bad", Fault.US: "bad"}
SILENT = {
    Outcome.COMPLETED: "the answer itself",
    Outcome.CLIENT_GONE_EARLY: "nobody listens",
    Outcome.CLIENT_GONE_QUEUED: "nobody listens",
    Outcome.CLIENT_GONE: "nobody listens",
    Outcome.CLIENT_STALLED: "the client does not read; its connection is closed",
}
INTRO = """\
# Errors

Every request ends in exactly one outcome. This table is made from the code (`python -m tests.support.errors_page`);
a test fails when it is not current. Before the first byte an error is an answer with the status below; after it, a
stream ends with one error event, and a whole answer is cut. `retry`: whether trying again can help; then the answer
carries `Retry-After` and `retry-after-ms`. `SLA`: how the request counts. Shape: OpenAI's
`{"error":{"message","type","param","code"}}`; on `/v1/messages` Anthropic's `{"type":"error","error":{...}}`.

| outcome | stage | status | type | Anthropic's type | code | retry | SLA | said to the client |
|---|---|---|---|---|---|---|---|---|
"""
OUTRO = """
A worker's own refusal (4xx, `worker_refused`) keeps its status and body; if it is no error object its words are put
into our shape. A worker's 429 or 503 (`worker_busy`) keeps its status. Its 401, 403 and 5xx are our fault: 502.

Said before there is a request, always in OpenAI's shape, with the connection closed:

| status | when |
|---|---|
"""


def render_row(outcome: Outcome) -> str:
    telling = TELLINGS[outcome]
    said = [SILENT[outcome]] if telling is None else [telling.message]
    told = ["-"] * 4
    if telling is not None:
        theirs = shape_anthropic(telling.status, telling.kind, telling.code, "", None)["error"]["type"]
        told = [str(telling.status), telling.kind, theirs, telling.code]
    retry = "yes" if outcome.retryable else "no"
    cells = [f"`{outcome.label}`", outcome.phase.value, *told, retry, SLA[outcome.fault], *said]
    return "| " + " | ".join(cells) + " |\n"


def render_page() -> str:
    raw = (NOT_HTTP, "the bytes are not HTTP/1.1"), (HEAD_TOO_LARGE, "request line and headers exceed 64 KiB"), (
        TOO_MANY, "there are too many connections and none that is silent"
    )  # fmt: skip
    canned = [f"| {answer.split(b' ', 2)[1].decode()} | {when} |\n" for answer, when in raw]
    return INTRO + "".join(map(render_row, Outcome)) + OUTRO + "".join(canned)


if __name__ == "__main__":
    PAGE.write_text(render_page())
