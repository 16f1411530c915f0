"""Names for the plain values that cross rooms, so that a tenant id is never passed where a worker id belongs."""

from typing import NewType

RequestId = NewType("RequestId", str)
"""Ours, unique per process lifetime; the worker receives it as ``x-request-id``."""

TenantId = NewType("TenantId", str)
"""Who pays. Never a metric label."""

WorkerId = NewType("WorkerId", str)
"""Identity of one vLLM server process: not its address, which may be used again by another worker."""

TierName = NewType("TierName", str)
"""Name of an SLA class as configured, for example ``priority``."""

ReplicaId = NewType("ReplicaId", str)
"""One life of one gateway process among those that share workers."""
