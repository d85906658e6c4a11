"""A policy server in a thread of the test, with whatever `infer` the test wants."""

import asyncio
import contextlib
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from openpi_client import msgpack_numpy
from openpi_client.websocket_client_policy import WebsocketClientPolicy

from policy_server.protocol import Inference, NoiseSpec
from policy_server.server import PolicyServer, bind

JOIN_TIMEOUT_S = 30  # only a hanging server reaches it


@contextlib.contextmanager
def serving(
    infer: Callable[[Any, np.ndarray], Inference],
    metadata: dict[str, Any],
    noise: NoiseSpec,
    **access: Any,
) -> Iterator[int]:
    """Serve on a free port of 127.0.0.1 until the block ends; gives the port."""
    listener = bind("127.0.0.1", 0)
    server = PolicyServer(infer, metadata, noise, **access)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.run(listener)))
    # Listening before the thread starts, the first connection waits instead of being refused.
    listener.listen()
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        loop.call_soon_threadsafe(server.stop)
        thread.join(JOIN_TIMEOUT_S)
        assert not thread.is_alive()
        loop.close()


def pack(message: object) -> bytes:
    """A frame as openpi's client makes it."""
    return msgpack_numpy.Packer().pack(message)


@contextlib.contextmanager
def stock_client(port: int, api_key: str | None = None) -> Iterator[WebsocketClientPolicy]:
    """openpi's own client; it has no way to close, so its connection is closed from here."""
    client = WebsocketClientPolicy("127.0.0.1", port, api_key)
    try:
        yield client
    finally:
        client._ws.close()


def get(port: int, path: str, **headers: str) -> tuple[int, str, str]:
    """Status, content type and body of a plain HTTP request."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=JOIN_TIMEOUT_S) as reply:
        return reply.status, reply.headers["Content-Type"], reply.read().decode()
