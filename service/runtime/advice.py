"""When a client that was sent away may come again, where the core gives no advice of its own."""

_SCATTER = 6180.339887
"""Golden ratio x 10^4: moments a tenth of a millisecond apart get advice 0.6 s apart (Knuth, TAOCP 3, 6.4)."""


def compute_retry_after_s(sent_away_at: float, at_least_s: float = 1.0) -> float:
    """``at_least_s`` and up to a second more, so that those sent away together do not return together.

    One second is a guess; ``make bench-overload`` is where it would be measured.
    """
    return at_least_s + sent_away_at * _SCATTER % 1.0
