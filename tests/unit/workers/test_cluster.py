"""Where the API server is, and how we prove who we are to it."""

import httpx
import pytest

from service.workers.cluster import ClusterAccess, FileToken, find_api_server, find_namespace, open_client


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}, "https://10.96.0.1:443"),
        ({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, "https://[fd00::1]:6443"),
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, None),
        ({"KUBERNETES_SERVICE_HOST": "x", "KUBERNETES_SERVICE_PORT": "tcp://x"}, None),
        ({}, None),
    ],
)
def test_the_environment_of_a_pod_names_the_api_server(environment, url):
    assert find_api_server(environment) == url


def test_the_namespace_is_in_the_mounted_folder(tmp_path):
    assert find_namespace(tmp_path) is None
    (tmp_path / "namespace").write_text("inference\n")
    assert find_namespace(tmp_path) == "inference"
    (tmp_path / "namespace").write_text("\n")
    assert find_namespace(tmp_path) is None


def test_a_token_is_read_for_each_request(tmp_path):
    path = tmp_path / "token"
    auth = FileToken(path)

    def sent() -> str | None:
        return next(auth.auth_flow(httpx.Request("GET", "https://api"))).headers.get("authorization")

    assert sent() is None
    path.write_text("one\n")
    assert sent() == "Bearer one"
    path.write_text("two\n")  # exchanged by the kubelet
    assert sent() == "Bearer two"


async def test_a_client_without_files(tmp_path):
    async with open_client(ClusterAccess("https://api:6443", "n")) as client:
        assert client.base_url == "https://api:6443"
        assert client.auth is None
    with pytest.raises(OSError, match="No such file"):
        open_client(ClusterAccess("https://api:6443", "n", ca_file=tmp_path / "none"))
