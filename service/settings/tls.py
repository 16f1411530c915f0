"""TLS of the public port: its context, and another certificate while it listens."""

import ssl
from typing import Any

_SHUTDOWN_S = 2.0
"""How long a client may take to say goodbye; uvloop's default is 30 s, which would outlast the end of a drain."""


def build_tls_context(cert: str, key: str) -> ssl.SSLContext:
    """Certificate chain and key from PEM files; raises OSError (``ssl.SSLError`` is one) if they cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(cert, key)
    return context


class Certificates:
    """The certificate in force. ``context`` is what the listener is given; each handshake takes the newest one.

    Not loaded into the same context again: a certificate with another kind of key would stand beside the old one there,
    and the client's taste would choose between them.
    """

    def __init__(self, cert: str, key: str) -> None:
        self.context = self._newest = build_tls_context(cert, key)
        self.context.sni_callback = self._choose  # called without a server name too

    def replace(self, newest: ssl.SSLContext) -> None:
        """Handshakes from now on show this one."""
        self._newest = newest

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest


def listening_options(certificates: Certificates | None, handshake_s: float) -> dict[str, Any]:
    """Arguments of ``loop.create_server``, which takes none of them without TLS. Until its handshake is over nobody
    counts or times a connection, so that has a bound of its own: the one for heads."""
    if certificates is None:
        return {}
    return {
        "ssl": certificates.context,
        "ssl_handshake_timeout": handshake_s,
        "ssl_shutdown_timeout": min(handshake_s, _SHUTDOWN_S),
    }
