"""A Kubernetes API server of one Service's EndpointSlices and pods, on loopback, that fails when told to.

The wire is the real one: lists in pages with ``continue``, watches as lines of JSON in a chunked body, resource
versions, ``BOOKMARK`` events, ``Status`` objects (410 inside of a watch comes as an ``ERROR`` event after a head of
200, as from a real server), merge patches of pods. Endpoints whose ports differ stand in slices of their own, as those
of a Service with a named target port do. What it does not do: other kinds, field selectors, admission.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]


@dataclass
class Endpoint:
    """One pod of the Service."""

    pod: str
    uid: str
    host: str
    port: int
    terminating: bool = False
    ready: bool = True


@dataclass(eq=False)
class _Watch:
    """One watch under way; ``queue`` holds lines, ``None`` ends it."""

    writer: asyncio.StreamWriter
    queue: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)


class FakeCluster:
    """The API server. ``port`` is known once it is started."""

    def __init__(self, namespace: str = "inference", service: str = "workers", token: str | None = None) -> None:
        self.namespace = namespace
        self.service = service
        self.token = token
        self.port = 0
        self.endpoints: dict[str, Endpoint] = {}
        self.pods: dict[str, Json] = {}
        self.calls: list[str] = []
        self.patches: list[tuple[str, Json]] = []
        self.refusal: tuple[int, str] | None = None
        """Status and message of every answer while it is set."""
        self.hanging = False
        """Requests are taken and never answered while it is set."""
        self.muted = False
        """Watches stay open and tell nothing while it is set: what happens meanwhile is lost to them."""
        self.forgetful = False
        """A watch begins with what happens next, whatever version it asks to begin at: events are lost in the gap."""
        self.always_gone = False
        """No version is young enough to begin a watch at."""
        self.list_answer: bytes | None = None
        """What is answered instead of a list."""
        self.page_limit = 500
        self._version = 100
        self._slices: dict[str, Json] = {}
        self._history: list[tuple[int, Json]] = []
        self._oldest = 0
        self._watches: set[_Watch] = set()
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._left = asyncio.Event()

    # ------------------------------------------------------------------ life

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def version(self) -> int:
        """The present resource version."""
        return self._version

    @property
    def watching(self) -> int:
        """Watches that are open."""
        return len(self._watches)

    async def start(self) -> FakeCluster:
        """Listen; on the same port as before if it was away."""
        self._left.clear()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Be away: nobody listens, every connection is cut."""
        if self._server is not None:
            self._server.close()
        self.end_watches()
        self._left.set()
        for writer in list(self._connections):
            writer.transport.abort()
        self._watches.clear()
        if self._server is not None:
            await self._server.wait_closed()
        for _ in range(3):  # those who served the cut connections end in the loop's next turns
            await asyncio.sleep(0)

    async def __aenter__(self) -> FakeCluster:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # ------------------------------------------------------------------ what happens in the cluster

    def add(self, pod: str, uid: str, port: int, host: str = "127.0.0.1", *, ready: bool = True) -> None:
        """A pod got an address."""
        self.endpoints[uid] = Endpoint(pod, uid, host, port, ready=ready)
        self.pods[pod] = {"metadata": {"name": pod, "uid": uid, "annotations": {}}}
        self._reconcile()

    def terminate(self, uid: str) -> None:
        """Its deletion has begun."""
        self.endpoints[uid].terminating = True
        self.endpoints[uid].ready = False
        self._reconcile()

    def remove(self, uid: str) -> None:
        """It is gone."""
        endpoint = self.endpoints.pop(uid)
        self.pods.pop(endpoint.pod, None)
        self._reconcile()

    def bookmark(self) -> None:
        """Tell all watches the present version, as a server does each minute."""
        self._version += 1
        kind = {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1"}
        self._tell({"type": "BOOKMARK", "object": {**kind, "metadata": {"resourceVersion": str(self._version)}}})

    def forget_history(self) -> None:
        """Versions up to the present one are too old to begin a watch at."""
        self._oldest = self._version + 1
        self._version += 1

    def say(self, event: Json | bytes) -> None:
        """Send all watches a line of the test's own."""
        self._tell(event)

    def end_watches(self, *, rudely: bool = False) -> None:
        """End every watch: in order, as at its time limit, or by cutting the connection."""
        for watch in list(self._watches):
            if rudely:
                watch.writer.transport.abort()
            watch.queue.put_nowait(None)

    def _reconcile(self) -> None:
        wanted = self._build_slices()
        for name in list(self._slices):
            if name not in wanted:
                self._note("DELETED", self._slices.pop(name))
        for name, item in wanted.items():
            known = self._slices.get(name)
            if known is None or known["endpoints"] != item["endpoints"]:
                self._slices[name] = item
                self._note("ADDED" if known is None else "MODIFIED", item)

    def _build_slices(self) -> dict[str, Json]:
        slices: dict[str, Json] = {}
        for endpoint in self.endpoints.values():
            name = f"{self.service}-{endpoint.port}"
            item = slices.setdefault(name, self._build_slice(name, endpoint.port))
            item["endpoints"].append(self._build_endpoint(endpoint))
        return slices

    def _build_slice(self, name: str, port: int) -> Json:
        labels = {"kubernetes.io/service-name": self.service}
        return {
            "kind": "EndpointSlice",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": {"name": name, "namespace": self.namespace, "labels": labels, "resourceVersion": "0"},
            "addressType": "IPv4",
            "endpoints": [],
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
        }

    def _build_endpoint(self, endpoint: Endpoint) -> Json:
        serving = endpoint.ready or endpoint.terminating
        return {
            "addresses": [endpoint.host],
            "conditions": {"ready": endpoint.ready, "serving": serving, "terminating": endpoint.terminating},
            "targetRef": {"kind": "Pod", "namespace": self.namespace, "name": endpoint.pod, "uid": endpoint.uid},
            "nodeName": "node-1",
        }

    def _note(self, kind: str, item: Json) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        event = {"type": kind, "object": json.loads(json.dumps(item))}
        self._history.append((self._version, event))
        if not self.muted:
            self._tell(event)

    def _tell(self, event: Json | bytes) -> None:
        line = event if isinstance(event, bytes) else json.dumps(event).encode() + b"\n"
        for watch in self._watches:
            watch.queue.put_nowait(line)

    # ------------------------------------------------------------------ the wire

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, target, _ = head.split(" ", 2)
                length = re.search(r"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1]) if length else 0)
                await self._answer(writer, method, target, head, body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._connections.discard(writer)
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, method: str, target: str, head: str, body: bytes) -> None:
        self.calls.append(f"{method} {target}")
        if self.hanging:
            await self._left.wait()
            return
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if self.token is not None and f"\r\nauthorization: bearer {self.token.lower()}\r\n" not in head.lower():
            self._send(writer, 401, _status(401, "Unauthorized"))
        elif self.refusal is not None:
            self._send(writer, self.refusal[0], _status(*self.refusal))
        elif method == "PATCH" and parts.path.startswith(f"/api/v1/namespaces/{self.namespace}/pods/"):
            self._patch(writer, parts.path.rpartition("/")[2], body)
        elif parts.path != f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices":
            self._send(writer, 404, _status(404, "the server could not find the requested resource"))
        elif query.get("watch"):
            await self._watch(writer, query)
        else:
            self._list(writer, query)

    def _send(self, writer: asyncio.StreamWriter, status: int, body: Json | bytes) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)

    def _patch(self, writer: asyncio.StreamWriter, name: str, body: bytes) -> None:
        pod = self.pods.get(name)
        if pod is None:
            self._send(writer, 404, _status(404, f'pods "{name}" not found'))
            return
        change = json.loads(body)
        if change["metadata"].get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            self._send(writer, 409, _status(409, "the UID in the precondition does not match", "Conflict"))
            return
        self.patches.append((name, change))
        pod["metadata"]["annotations"] |= change["metadata"]["annotations"]
        self._send(writer, 200, pod)

    def _list(self, writer: asyncio.StreamWriter, query: dict[str, str]) -> None:
        items = list(self._slices.values()) if self._selects(query) else []
        if self.list_answer is not None:
            self._send(writer, 200, self.list_answer)
            return
        first = int(query.get("continue", "0"))
        last = first + min(int(query.get("limit", "500")), self.page_limit)
        metadata = {"resourceVersion": str(self._version)}
        if last < len(items):
            metadata["continue"] = str(last)
        kind = {"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1"}
        self._send(writer, 200, {**kind, "metadata": metadata, "items": items[first:last]})

    def _selects(self, query: dict[str, str]) -> bool:
        return query.get("labelSelector", "") in ("", f"kubernetes.io/service-name={self.service}")

    async def _watch(self, writer: asyncio.StreamWriter, query: dict[str, str]) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        since = int(query["resourceVersion"])
        if since < self._oldest or self.always_gone:
            gone = _status(410, f"too old resource version: {since} ({self._oldest})", "Expired")
            self._chunk(writer, json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
            writer.write(b"0\r\n\r\n")
            return
        watch = _Watch(writer)
        if not (self.forgetful or self.muted):
            for version, event in self._history:
                if version > since:
                    watch.queue.put_nowait(json.dumps(event).encode() + b"\n")
        self._watches.add(watch)
        try:
            async with asyncio.timeout(float(query.get("timeoutSeconds", "1800"))):
                async for line in _lines_of(watch):
                    self._chunk(writer, line)
                    await writer.drain()
        except TimeoutError:
            pass
        finally:
            self._watches.discard(watch)
        writer.write(b"0\r\n\r\n")

    def _chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """In two chunks: a line is not a chunk."""
        for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
            if piece:
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))


async def _lines_of(watch: _Watch) -> AsyncIterator[bytes]:
    while (line := await watch.queue.get()) is not None:
        yield line


def _status(code: int, message: str, reason: str = "") -> Json:
    said = {"status": "Failure", "message": message, "reason": reason, "code": code}
    return {"kind": "Status", "apiVersion": "v1", **said}


@contextlib.contextmanager
def lost(cluster: FakeCluster) -> Iterator[None]:
    """What happens meanwhile is told by no watch."""
    cluster.muted = True
    try:
        yield
    finally:
        cluster.muted = False


class ClusterThread:
    """A cluster on a loop of its own, for whoever waits for processes. ``do`` changes it from outside."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> ClusterThread:
        self._thread.start()
        self.run(self.cluster.start())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.cluster.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, step: Coroutine[Any, Any, Any]) -> None:
        """Wait for ``step``, run on the cluster's loop."""
        asyncio.run_coroutine_threadsafe(step, self._loop).result(10)

    def do(self, change: Callable[..., object], *given: Any) -> None:  # noqa: ANN401 - whatever the change takes
        """Call ``change``, a method of the cluster, on its loop."""

        async def call() -> None:
            change(*given)

        self.run(call())
