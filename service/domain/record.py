"""What the shared store keeps of tenants and keys, as text under names; the store does not read what it says."""

from collections.abc import Iterable

from service.domain.value import value

KEY, TENANT = "k:", "t:"
"""Beginnings of names: a key by the SHA-256 of it in hex, a tenant by its id."""


@value
class Changes:
    """What is different since a version: names with their texts, ``None`` for what is gone. ``whole``: these are all
    there are.

    ``epoch`` is another one when the store has lost what it had: versions of two epochs cannot be compared.
    """

    epoch: str
    version: int
    whole: bool
    records: Iterable[tuple[str, bytes | None]]
