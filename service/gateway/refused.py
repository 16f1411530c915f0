"""The way out of the edge for a request that is refused there."""

from service.domain.outcome import Outcome


class Refused(Exception):  # noqa: N818 - a way out, not an error
    """The request ends with ``outcome``; ``detail`` and ``param`` go into the answer."""

    def __init__(self, outcome: Outcome, detail: str | None = None, param: str | None = None) -> None:
        super().__init__(outcome)
        self.outcome = outcome
        self.detail = detail
        self.param = param
