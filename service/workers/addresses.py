"""Where a worker listens."""

from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from service.domain.units import WorkerId


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """A place at which a worker should answer.

    ``worker_id`` is what the source of the list knows it by: ``host:port`` for static and DNS sources, the pod's UID
    for Kubernetes. The process found there may change; :mod:`service.workers.identity` notices that.
    ``server_name``: the name its certificate must be for, where ``host`` is only what that name resolved to.
    ``pod``: what people call it, where that differs. ``leaving``: the platform is about to end it. Neither of these two
    makes it another place.
    """

    worker_id: WorkerId
    host: str
    port: int
    tls: bool = False
    server_name: str | None = None
    pod: str | None = field(default=None, compare=False)
    leaving: bool = field(default=False, compare=False)

    @property
    def authority(self) -> str:
        """``host:port`` as in a URL or a ``Host`` header."""
        return format_authority(self.host, self.port)

    @property
    def base_url(self) -> str:
        """URL without a path."""
        return f"{'https' if self.tls else 'http'}://{self.authority}"

    def as_leaving(self, leaving: bool) -> "WorkerAddress":
        """The same place, with this said of it."""
        return self if leaving is self.leaving else replace(self, leaving=leaving)


def format_authority(host: str, port: int) -> str:
    """``host:port``, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(url: str) -> WorkerAddress:
    """Read ``http://host:port`` or ``https://host:port``; ``ValueError`` says what is wrong with anything else."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"worker {url!r}: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"worker {url!r}: must begin with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"worker {url!r}: must not carry user or password")
    if not parts.hostname:
        raise ValueError(f"worker {url!r}: the host is missing")
    if port is None:
        raise ValueError(f"worker {url!r}: the port is missing")
    if port == 0:
        raise ValueError(f"worker {url!r}: port 0 cannot be connected to")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"worker {url!r}: only scheme, host and port, no path or query")
    host = parts.hostname
    return WorkerAddress(WorkerId(format_authority(host, port)), host, port, parts.scheme == "https")
