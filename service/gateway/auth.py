"""Whose request is this: keys from headers to tenants. Keys are hashed at once and never kept, printed or logged."""

import hashlib
import hmac
import secrets
from collections.abc import Iterable

from service.domain.tenant import Tenant
from service.domain.value import value

KEY_PREFIX = "sk-sluice-"


def hash_key(key: bytes) -> bytes:
    """SHA-256 of a key. Keys carry 256 random bits, so neither salt nor a slow hash adds anything."""
    return hashlib.sha256(key).digest()


def new_key() -> str:
    """A fresh key; shown once, then only its hash is known."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


@value
class Known:
    """Who the last request on a connection was from, by which words. A client says the same with each of its requests,
    and its last is kept with the connection anyway; reading and hashing a key takes 1.5 us more than comparing."""

    authorization: bytes | None
    api_key: bytes | None
    tenant: Tenant
    generation: int

    def is_still_true(self, authorization: bytes | None, api_key: bytes | None, generation: int) -> bool:
        """Whether the same words still mean the same tenant. In constant time: behind a proxy many clients share one
        connection, and how long a comparison takes must not tell one of them the key of another."""
        return (
            self.generation == generation
            and _is_same(self.authorization, authorization)
            and _is_same(self.api_key, api_key)
        )


def _is_same(one: bytes | None, other: bytes | None) -> bool:
    if one is None or other is None:
        return one is other
    return hmac.compare_digest(one, other)


def read_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The key a client sent, or ``None`` if there is none or more than one story about it.

    ``Authorization: Bearer KEY`` (scheme in any case) or ``x-api-key: KEY``; if both come they must agree.
    """
    found: bytes | None = None
    for name, said in headers:
        if name == b"authorization":
            scheme, _, key = said.partition(b" ")
            if scheme.lower() != b"bearer":
                return None
            key = key.strip()
        elif name == b"x-api-key":
            key = said.strip()
        else:
            continue
        if not key or (found is not None and not hmac.compare_digest(found, key)):
            return None
        found = key
    return found
