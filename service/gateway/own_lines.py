"""Renders the header lines of our own that every answer carries, the same on each."""

import hashlib
from collections.abc import Callable, Mapping

from service.domain.units import RequestId, WorkerId
from service.gateway.cors import CorsPolicy
from service.gateway.headers import is_sane_id
from service.runtime.account import Settlement


class OwnLines:
    """``note_alias`` hears by which id of its own a client knows a request."""

    def __init__(self, cors: CorsPolicy) -> None:
        self.cors = cors
        self.note_alias: Callable[[bytes, RequestId], None] | None = None

    def render(self, named: Mapping[bytes, bytes], settlement: Settlement, tier: str | None) -> bytes:
        """The lines of an answer to a request with the headers ``named``, served in ``tier``."""
        theirs = named.get(b"x-request-id")
        if theirs is None or not is_sane_id(theirs):
            theirs = settlement.request_id.encode()
        elif settlement.client_request_id is None and b"sk-" not in theirs:  # a key, taken for an id, is kept nowhere
            settlement.client_request_id = theirs.decode("latin-1")
            if self.note_alias is not None:
                self.note_alias(theirs, settlement.request_id)
        if tier is None:
            lines = b"x-request-id: %b\r\n" % theirs
        else:
            lines = b"x-request-id: %b\r\nx-sluice-tier: %b\r\n" % (theirs, tier.encode())
            if settlement.excess:
                lines += b"x-sluice-excess: true\r\n"
        if settlement.limits:
            lines += settlement.limits
        if b"origin" in named:
            lines += self.cors.headers_for(named[b"origin"])
        return lines


def name_for_clients(salt: bytes, worker_id: WorkerId) -> bytes:
    """A worker's name in answers: the same on every replica, and no address."""
    return hashlib.blake2b(worker_id.encode(), key=salt[:64], digest_size=6).hexdigest().encode()
