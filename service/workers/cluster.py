"""Knows where the Kubernetes API server is and how to prove who we are to it; opens connections that do.

In a pod all of it is in the environment and in a mounted folder. Both the token (a projected one lives an hour and is
exchanged on disk well before) and the bundle of authorities may change while we run, so the token is read for each
request and the bundle is looked at whenever a connection is opened.
"""

import ssl
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from service.workers.addresses import format_authority
from service.workers.lane import build_worker_tls

ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, authorities and namespace; fixed by Kubernetes."""
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """``api_server``: its URL. ``token_file`` and ``ca_file``: read from disk when used; without a ``ca_file`` the
    system's authorities count."""

    api_server: str
    namespace: str
    token_file: Path | None = None
    ca_file: Path | None = None


def find_api_server(environment: Mapping[str, str]) -> str | None:
    """The URL that Kubernetes gives to each pod; ``None`` outside of a cluster."""
    host, port = environment.get(_HOST), environment.get(_PORT)
    return f"https://{format_authority(host, int(port))}" if host and port and port.isdigit() else None


def find_namespace(account: Path = ACCOUNT_DIR) -> str | None:
    """The namespace of this pod; ``None`` outside of a cluster."""
    try:
        return (account / "namespace").read_text().strip() or None
    except OSError:
        return None


class FileToken(httpx.Auth):
    """Sends what the file holds at the moment of the request; nothing while it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Add the header."""
        try:
            token = self._path.read_text().strip()
        except OSError:
            token = ""
        if token:
            request.headers["authorization"] = f"Bearer {token}"
        yield request


def open_client(access: ClusterAccess, connect_timeout_s: float = 5.0) -> httpx.AsyncClient:
    """A client of the API server. Proxies of the environment are ignored, compression is declined (a page is small,
    and unpacking a watch would hold lines back).

    Raises:
        OSError: the bundle of authorities cannot be used.
    """
    verify = build_worker_tls() if access.ca_file is None else ssl.create_default_context(cafile=access.ca_file)
    return httpx.AsyncClient(
        base_url=access.api_server,
        headers={"accept": "application/json", "accept-encoding": "identity", "user-agent": "sluice-gateway"},
        auth=None if access.token_file is None else FileToken(access.token_file),
        timeout=httpx.Timeout(connect_timeout_s),
        trust_env=False,
        follow_redirects=False,
        verify=verify,
    )
