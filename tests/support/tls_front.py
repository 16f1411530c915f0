"""Speaks TLS in front of a port that does not, for tests of workers behind it."""

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for one in (source, sink):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def _serve(plain: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with contextlib.suppress(OSError), plain:
        plain.settimeout(10)
        with (
            context.wrap_socket(plain, server_side=True) as secure,
            socket.create_connection(("127.0.0.1", port), 10) as behind,
        ):
            back = threading.Thread(target=_carry, args=(behind, secure), daemon=True)
            back.start()
            _carry(secure, behind)
            back.join(10)


def _accept(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with contextlib.suppress(OSError):
        while True:
            plain, _ = listener.accept()
            threading.Thread(target=_serve, args=(plain, context, port), daemon=True).start()


@contextlib.contextmanager
def run_tls_front(port: int, behind: int, folder: Path) -> Iterator[None]:
    """Listen on ``port`` with the certificate in ``folder`` until the block ends."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    with socket.create_server(("127.0.0.1", port), backlog=64) as listener:
        threading.Thread(target=_accept, args=(listener, context, behind), daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)


def make_certificate(folder: Path, kind: str, names: str, common: str) -> None:
    """``cert.pem`` and ``key.pem`` in ``folder``, signed by itself."""
    key = ["rsa:2048"] if kind == "rsa" else ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    argv = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-newkey", *key, "-subj", f"/CN={common}"]
    argv += ["-addext", f"subjectAltName={names}", "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
