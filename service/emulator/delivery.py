"""Decides the bytes that carry server-sent events: plain, or in an odd but lawful form that clients must survive."""

from __future__ import annotations

from service.emulator.faults import FaultKind

ODD_DELTA = b'"delta":{"refusal":null,"function_call":null,"x_unknown":{"deep":[null,true,1e3]},'


def shape(events: bytes, variants: frozenset[FaultKind], first: bool) -> bytes:
    """The same events in another dress."""
    if FaultKind.ODD_FIELDS in variants:
        events = events.replace(b'"delta":{', ODD_DELTA).replace(b"null,}", b"null}")
    if FaultKind.SSE_MULTILINE in variants:
        events = events.replace(b',"choices"', b',\ndata: "choices"').replace(b',"delta"', b',\ndata: "delta"')
    if FaultKind.SSE_COMMENTS in variants:
        events = b": ping\n\n" + events.replace(b"data: ", b": note\ndata: ")
    if FaultKind.SSE_BOM in variants and first:
        events = b"\xef\xbb\xbf" + events
    if FaultKind.SSE_CRLF in variants:
        events = events.replace(b"\n", b"\r\n")
    elif FaultKind.SSE_CR in variants:
        events = events.replace(b"\n", b"\r")
    return events


def chunk(data: bytes, single_bytes: bool) -> bytes:
    """Data as HTTP chunks: one, or one per byte."""
    if single_bytes:
        return b"".join(b"1\r\n%c\r\n" % byte for byte in data)
    return b"%x\r\n%b\r\n" % (len(data), data)
