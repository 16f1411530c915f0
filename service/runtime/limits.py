"""Time and memory limits of a relay, by phase."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """All in seconds but the sizes.

    ``first_token_s``: from dispatch to the first token of a stream; long prefills are healthy, so it is generous.
    ``inter_token_s``: the longest silence after it. ``whole_s``: from dispatch to the end of an answer that is not a
    stream. ``client_stall_s``: how long a client may refuse to read. ``heartbeat_after_s``: silence after which a
    stream's head is committed and a comment sent, then every ``heartbeat_every_s``. ``hold_s``: how long a first
    event without a token is held back, so that a worker that gives up right after it can be replaced unseen.
    ``hold_bytes``: the most that is held back, for streams and for whole answers.
    """

    first_token_s: float = 300.0
    inter_token_s: float = 60.0
    whole_s: float = 1800.0
    client_stall_s: float = 60.0
    heartbeat_after_s: float = 20.0
    heartbeat_every_s: float = 15.0
    hold_s: float = 0.1
    hold_bytes: int = 65536
