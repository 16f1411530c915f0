"""The one way in which each request ends: a closed set, with phase, fault and whether trying again can help.

HTTP status, ``Retry-After``, SLI accounting and the breaker follow from these three, so a new outcome has to say them.
"""

from enum import Enum


class Phase(Enum):
    """The stage of a request's way in which it ended (design: the way of a request)."""

    REQUEST = "request"
    AUTH = "auth"
    PEEK = "peek"
    ADMIT = "admit"
    QUEUE = "queue"
    DISPATCH = "dispatch"
    RELAY = "relay"


class Fault(Enum):
    """Whose fault an ending is; decides whether it counts against the SLA."""

    NONE = "none"
    CLIENT = "client"
    CAPACITY = "capacity"
    US = "us"

    def __init__(self, label: str) -> None:
        self.label = label


class Outcome(Enum):
    """Every possible ending. There is no "other": matches end in ``assert_never``."""

    # name = (label, phase, fault, a retry by the client can help)
    COMPLETED = ("completed", Phase.RELAY, Fault.NONE, False)

    TOO_LARGE = ("too_large", Phase.REQUEST, Fault.CLIENT, False)
    BODY_TIMEOUT = ("body_timeout", Phase.REQUEST, Fault.CLIENT, True)
    CLIENT_GONE_EARLY = ("client_gone_early", Phase.REQUEST, Fault.CLIENT, False)
    BYTES_EXHAUSTED = ("bytes_exhausted", Phase.REQUEST, Fault.CAPACITY, True)
    UNAUTHENTICATED = ("unauthenticated", Phase.AUTH, Fault.CLIENT, False)
    FORBIDDEN = ("forbidden", Phase.AUTH, Fault.CLIENT, False)
    MALFORMED = ("malformed", Phase.PEEK, Fault.CLIENT, False)
    UNKNOWN_MODEL = ("unknown_model", Phase.PEEK, Fault.CLIENT, False)
    UNKNOWN_RESPONSE = ("unknown_response", Phase.PEEK, Fault.CLIENT, False)

    RATE_LIMITED = ("rate_limited", Phase.ADMIT, Fault.CLIENT, True)
    QUOTA_UNKNOWN = ("quota_unknown", Phase.ADMIT, Fault.US, True)
    QUEUE_FULL = ("queue_full", Phase.ADMIT, Fault.CAPACITY, True)
    NO_WORKERS = ("no_workers", Phase.ADMIT, Fault.US, True)
    DRAINING = ("draining", Phase.ADMIT, Fault.US, True)
    DEADLINE_UNATTAINABLE = ("deadline_unattainable", Phase.ADMIT, Fault.CAPACITY, True)
    SHED = ("shed", Phase.ADMIT, Fault.CLIENT, True)
    EXPIRED = ("expired", Phase.QUEUE, Fault.CAPACITY, True)
    CLIENT_GONE_QUEUED = ("client_gone_queued", Phase.QUEUE, Fault.CLIENT, False)

    WORKER_UNREACHABLE = ("worker_unreachable", Phase.DISPATCH, Fault.US, True)
    WORKER_BUSY = ("worker_busy", Phase.DISPATCH, Fault.CAPACITY, True)
    WORKER_REFUSED = ("worker_refused", Phase.RELAY, Fault.CLIENT, False)
    WORKER_FAILED = ("worker_failed", Phase.RELAY, Fault.US, True)
    FIRST_TOKEN_TIMEOUT = ("first_token_timeout", Phase.RELAY, Fault.US, True)
    STREAM_STALLED = ("stream_stalled", Phase.RELAY, Fault.US, True)
    STREAM_BROKEN = ("stream_broken", Phase.RELAY, Fault.US, True)
    CLIENT_DEADLINE = ("client_deadline", Phase.RELAY, Fault.CLIENT, True)
    REVOKED = ("revoked", Phase.RELAY, Fault.CLIENT, True)
    DRAIN_CUT = ("drain_cut", Phase.RELAY, Fault.US, True)
    CLIENT_GONE = ("client_gone", Phase.RELAY, Fault.CLIENT, False)
    CLIENT_STALLED = ("client_stalled", Phase.RELAY, Fault.CLIENT, False)
    GATEWAY_FAULT = ("gateway_fault", Phase.RELAY, Fault.US, True)

    def __init__(self, label: str, phase: Phase, fault: Fault, retryable: bool) -> None:
        self.label = label
        self.phase = phase
        self.fault = fault
        self.retryable = retryable
