"""How many files and sockets this process may open, and what that leaves for clients."""

import resource

RESERVED = 128
"""Left for the admin port, probes of workers, logs and the listener itself."""


def raise_descriptor_limit() -> int:
    """Lift the soft limit to the hard one; the number of descriptors we may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def bound_connections(wanted: int, reserve: int, descriptors: int) -> int:
    """Client connections that may be open: each may need a second one to a worker.

    (descriptors - RESERVED) >= 2 x connections + reserve, at least 1.
    """
    return max(min(wanted, (descriptors - RESERVED - reserve) // 2), 1)
