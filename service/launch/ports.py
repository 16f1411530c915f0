"""Finds ports that nothing listens on."""

import socket


def find_free_ports(count: int) -> list[int]:
    """``count`` different ports of loopback, free at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
