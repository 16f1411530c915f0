"""Builds the TLS context of the public port."""

import ssl


def build_tls_context(cert: str, key: str) -> ssl.SSLContext:
    """Certificate chain and key from PEM files; raises OSError (``ssl.SSLError`` is one) if they cannot be used."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(cert, key)
    return context
