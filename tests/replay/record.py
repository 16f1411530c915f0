"""Makes the journal in ``tests/replay/journals``: ``python -m tests.replay.record``.

To be run again, and its diff to be read, when a policy is meant to decide otherwise than before.
"""

from pathlib import Path

from service.runtime.journal import encode_header, encode_record
from tests.support.world import World

JOURNAL = Path(__file__).parent / "journals" / "trouble.jsonl"


def build_lines() -> bytes:
    """Some 30 s of overload with failures, drains, a reconfiguration and expiry."""
    journal = World(seed=20).run(length_s=30.0, arrivals_per_s=8.0)
    return encode_header(journal.header) + b"".join(encode_record(record) for record in journal.records)


if __name__ == "__main__":
    JOURNAL.parent.mkdir(exist_ok=True)
    JOURNAL.write_bytes(build_lines())
