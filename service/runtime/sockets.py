"""Opens listening sockets, with an error that names the address and the cure."""

import errno
import socket


class AddressRefusedError(OSError):
    """The address cannot be listened on; the message says why in words an operator can act on."""


def open_listener(host: str, port: int, setting: str) -> socket.socket:
    """A bound socket that is not yet listening. ``setting`` names where the port was chosen."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise AddressRefusedError(f"{host!r} is no address of this machine: {error.strerror}") from None
    listener = socket.socket(family, kind, number)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise AddressRefusedError(_explain(host, port, setting, error)) from None
    listener.setblocking(False)
    return listener


def _explain(host: str, port: int, setting: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken: stop what listens there, or choose another with {setting}"
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights than this user has: choose one above 1023 with {setting}"
    return f"cannot listen on {host}:{port}: {error.strerror}"
