"""Whether a browser page of another origin may read our answers: off unless configured."""

from dataclasses import dataclass

_PREFLIGHT = (
    b"access-control-allow-methods: GET, POST, OPTIONS\r\n"
    b"access-control-allow-headers: authorization, content-type, x-api-key, x-request-id, x-sluice-deadline-ms, "
    b"x-sluice-session, anthropic-version, anthropic-beta\r\naccess-control-max-age: 600\r\n"
)
_EXPOSED = (
    b"access-control-expose-headers: x-request-id, retry-after, retry-after-ms, x-sluice-tier, x-sluice-queue-ms\r\n"
)


@dataclass(frozen=True, slots=True)
class CorsPolicy:
    """Origins that may call; ``*`` stands for all."""

    origins: frozenset[bytes] = frozenset()

    def headers_for(self, origin: bytes | None) -> bytes:
        """Header lines for an answer to ``origin``; empty when it may not read it."""
        if origin is None or not self.origins:
            return b""
        if b"*" in self.origins:
            return b"access-control-allow-origin: *\r\n" + _EXPOSED
        if origin not in self.origins:
            return b"vary: origin\r\n"
        return b"access-control-allow-origin: %b\r\nvary: origin\r\n" % origin + _EXPOSED

    def preflight_for(self, origin: bytes | None) -> bytes | None:
        """Header lines that answer an OPTIONS request, or ``None`` if it is none of ours to answer."""
        lines = self.headers_for(origin)
        return lines + _PREFLIGHT if b"access-control-allow-origin" in lines else None
