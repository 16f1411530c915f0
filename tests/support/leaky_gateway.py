"""A gateway with the fault that the slow-reader run exists to find: it keeps whatever its client does not read.

    python -m tests.support.leaky_gateway PORT WORKER_URL

It relays bytes both ways and never waits for the client; so that a test cannot eat the machine's memory, it stops
reading from the worker once it holds ``MOST_HELD_BYTES`` for a connection.
"""

import asyncio
import sys
from urllib.parse import urlsplit

MOST_HELD_BYTES = 8 * 2**20


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Passes bytes on without heeding the receiver."""
    while data := await reader.read(65536):
        writer.write(data)
        if writer.transport.get_write_buffer_size() > MOST_HELD_BYTES:
            await writer.drain()
    writer.close()


async def serve(port: int, worker: str) -> None:
    """Listens until killed."""
    address = urlsplit(worker)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(address.hostname, address.port)
        down = asyncio.ensure_future(relay(upstream_reader, writer))
        try:
            await relay(reader, upstream_writer)
        finally:
            down.cancel()
            writer.close()

    server = await asyncio.start_server(connect, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
