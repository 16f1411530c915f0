"""Why a request is refused at the edge before its journey begins."""

from typing import Protocol

from service.domain.outcome import Outcome
from service.gateway.exchange import Exchange


class Refused(Exception):  # noqa: N818 - a way out, not an error
    """Raised by a stage that ends the request."""

    def __init__(
        self,
        outcome: Outcome,
        detail: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(outcome)
        self.retry_after_s = retry_after_s
        self.outcome = outcome
        self.detail = detail
        self.param = param


class Ender(Protocol):
    """Ends a request that our own code failed."""

    def end_at_fault(self, exchange: Exchange) -> None:
        """Tell its client, if it can be told, and settle it."""
        ...


class Failing:
    """A request that may have no journey yet, as the victim of a fault of ours."""

    __slots__ = ("_ender", "_exchange")

    def __init__(self, ender: Ender, exchange: Exchange) -> None:
        self._ender = ender
        self._exchange = exchange

    def on_fault(self) -> None:
        """End it."""
        self._ender.end_at_fault(self._exchange)


def check_body(exchange: Exchange) -> None:
    """Whether the body, as it was announced or has come, can be served.

    Raises:
        Refused: it cannot.
    """
    if exchange.over_limit:
        raise Refused(Outcome.BYTES_EXHAUSTED, "Too many connections to this gateway. Try again shortly.")
    if exchange.named.get(b"content-encoding", b"identity").lower() != b"identity":
        raise Refused(Outcome.MALFORMED, "Compressed bodies are not supported: send the body as it is.")
    match exchange.body_fault:
        case None:
            return
        case "too_large":
            limit = exchange.body_limit
            raise Refused(Outcome.TOO_LARGE, f"The request body is larger than the {limit} bytes allowed here.")
        case "framing":
            raise Refused(Outcome.MALFORMED, "The chunks of the request body are not valid HTTP/1.1.")
        case "ours":
            raise Refused(Outcome.GATEWAY_FAULT)
        case _:
            raise Refused(Outcome.BYTES_EXHAUSTED)
