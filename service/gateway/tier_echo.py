"""Writes the tier that served a request into an answer of which the client asked for one; all other bytes stay.

In a whole answer the member ``service_tier`` of the top level is set, or put first if there is none. In a stream the
events that end it (a finish reason, the usage) get it, and where the worker names a tier itself (the response object of
``/v1/responses``) that is set.
"""

import re

from service.gateway.members import locate_member
from service.gateway.sse import EventTap, Reader

_LAST = re.compile(rb'"finish_reason"\s*:\s*"|"usage"\s*:\s*\{')
_NAMED = re.compile(rb'"service_tier"\s*:\s*(?:null|"[^"\\]*")')
_DATA = b"data: {"


def mark_whole(body: bytes, tier: bytes) -> bytes:
    """``body`` with the tier; one that is no JSON object stays as it is."""
    member = b'"service_tier":"%b"' % tier
    if b'"service_tier"' in body:
        place = locate_member(body, "service_tier")
        if place is not None:
            begin, end = place
            return b'%b"%b"%b' % (body[:begin], tier, body[end:])
    if not body.startswith(b"{") or body[1:2] in (b"}", b""):
        return body
    return b"{%b,%b" % (member, body[1:])


class EchoTap(EventTap):
    """A tap that names the tier in the last events it lets pass."""

    __slots__ = ("_member",)

    def __init__(self, reader: Reader, strip_usage: bool, tier: bytes) -> None:
        super().__init__(reader, strip_usage)
        self._member = b'"service_tier":"%b"' % tier

    def feed(self, data: bytes) -> bytes:
        """Look at ``data`` and return what may be sent on now."""
        return self._mark(super().feed(data))

    def drain(self) -> bytes:
        """What was held back, now that nothing more comes."""
        return self._mark(super().drain())

    def _mark(self, events: bytes) -> bytes:
        if _LAST.search(events) is None and b'"service_tier"' not in events:
            return events
        return b"\n\n".join([self._mark_event(event) for event in events.split(b"\n\n")])

    def _mark_event(self, event: bytes) -> bytes:
        named = _NAMED.findall(event)
        if named:  # twice: one of them is within something of the client's own
            return _NAMED.sub(self._member, event) if len(named) == 1 else event
        if _DATA in event and _LAST.search(event) is not None:
            return event.replace(_DATA, _DATA + self._member + b",", 1)
        return event
