"""The websocket server: a thin adapter between connections and one inference thread.

The event loop only moves bytes; every query is decoded and answered in one worker thread, in the
order of arrival, so that health checks and pings are answered while a query runs.
"""

import asyncio
import dataclasses
import logging
import secrets
import signal
import socket
import ssl
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import websockets.asyncio.server as ws
from jaxtyping import Float32
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.protocol import State

from policy_server.errors import ConfigError, RequestError
from policy_server.http_answers import HttpAnswers
from policy_server.metrics import Metrics, Result
from policy_server.protocol import Inference, NoiseSpec, decode_request, encode, make_reply

logger = logging.getLogger(__name__)
library_logger = logging.getLogger(f"{__name__}.websockets")
library_logger.setLevel(logging.WARNING)  # it says of every connection what is logged here already

# Above the protocol's own limit, so that a message a little too large is answered with a sentence;
# one larger than this closes the connection (1009) before it is in memory.
MAX_FRAME_BYTES = 64 * 2**20

Infer = Callable[[Mapping[str, Any], Float32[np.ndarray, "h a"]], Inference]


@dataclasses.dataclass
class Session:
    """What is remembered of one connection; nothing of it reaches an action of a seeded request."""

    peer: str
    query_ms: list[float] = dataclasses.field(default_factory=list)
    n_drawn: int = 0
    warned: bool = False
    n_refused: int = 0
    prev_total_ms: float | None = None

    def summary(self) -> str:
        """Query count, median time and refusals, for the log."""
        text = f"{len(self.query_ms)} queries"
        if self.query_ms:
            text += f", median {statistics.median(self.query_ms):.1f} ms"
        return f"{text}, {self.n_refused} refused" if self.n_refused else text


class PolicyServer:
    """Answers queries on a bound socket until it is told to stop."""

    def __init__(
        self,
        infer: Infer,
        metadata: Mapping[str, Any],
        noise: NoiseSpec,
        *,
        api_key: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Keep what is served; no thread and no connection yet.

        Args:
            infer: Maps (observation, noise) to a result; called in one thread, one call at a time.
            metadata: The first frame of every connection.
            noise: What noise must look like.
            api_key: What clients must send; None serves everyone.
            tls: Certificate and key; None serves without encryption.
        """
        self._infer = infer
        self._metadata = encode(metadata)
        self._noise = noise
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="infer")
        self._stopping = asyncio.Event()
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._tls = tls
        self._metrics = Metrics()
        self._answer_http = HttpAnswers(
            self._metrics, api_key=api_key, is_stopping=self._stopping.is_set
        )

    def stop(self) -> None:
        """Let the running queries finish, then close everything; call it from the event loop."""
        self._stopping.set()

    async def run(self, listener: socket.socket) -> None:
        """Listen on a bound socket and serve until `stop`.

        Raises:
            ConfigError: Another process took the port after the socket was bound.
        """
        try:
            server = await ws.serve(
                self._serve_connection,
                sock=listener,
                ssl=self._tls,
                process_request=self._answer_http,
                compression=None,
                max_size=MAX_FRAME_BYTES,
                logger=library_logger,
                ping_timeout=None,  # a client that computes does not answer pings, and may do so
            )
        except OSError as error:
            raise _port_error(_address(listener.getsockname()), error) from error
        scheme = "ws" if self._tls is None else "wss"
        logger.info("listening on %s://%s", scheme, _address(listener.getsockname()))
        await self._stopping.wait()
        await self._idle.wait()
        server.close()
        await server.wait_closed()
        self._worker.shutdown()

    async def _serve_connection(self, connection: ws.ServerConnection) -> None:
        session = Session(peer=_address(connection.remote_address))
        logger.info("%s connected", session.peer)
        self._metrics.connections.inc()
        ending = ""
        try:
            await connection.send(self._metadata)
            async for frame in connection:
                if self._stopping.is_set() or connection.state is not State.OPEN:
                    break  # what a client sends after the end is not answered
                await self._serve_query(connection, frame, session)
        except ConnectionClosed as closed:
            # the stock client never says goodbye; only a connection that was ended here is told of
            if closed.sent is not None and not closed.rcvd_then_sent:
                ending = f"; ended here: {closed.sent}"
        finally:
            self._metrics.connections.dec()
            logger.info("%s disconnected: %s%s", session.peer, session.summary(), ending)

    async def _serve_query(
        self, connection: ws.ServerConnection, frame: bytes | str, session: Session
    ) -> None:
        """Answer one frame; a bad request is told so, a fault of ours closes the connection."""
        received = time.perf_counter()
        self._running += 1
        self._idle.clear()
        self._metrics.unanswered.inc()
        result: Result = "ok"
        try:
            loop = asyncio.get_running_loop()
            reply = await loop.run_in_executor(self._worker, self._answer, frame, session, received)
            await connection.send(reply)
        except RequestError as error:
            result = "refused"
            if not session.n_refused:
                logger.warning("%s refused, the first time: %s", session.peer, error)
            session.n_refused += 1
            await connection.send(str(error))
        except ConnectionClosed:
            raise
        except Exception:
            result = "fault"
            fault = secrets.token_hex(4)
            logger.exception("internal error %s, %s", fault, session.peer)
            await connection.send(f"internal error {fault}; the server's log has its traceback.")
            await connection.close(CloseCode.INTERNAL_ERROR, f"internal error {fault}")
        finally:
            session.prev_total_ms = _ms_since(received)
            self._metrics.unanswered.dec()
            self._metrics.answered(result, session.prev_total_ms / 1000.0)
            self._running -= 1
            if not self._running:
                self._idle.set()

    def _answer(self, frame: bytes | str, session: Session, received: float) -> bytes:
        """Decode, infer and encode, in the worker thread."""
        queue_ms = _ms_since(received)
        request = decode_request(frame, self._noise)
        noise = request.noise
        if noise is None:
            noise = self._noise.draw(session.n_drawn)
            session.n_drawn += 1
        started = time.perf_counter()
        result = self._infer(request.observation, noise)
        infer_ms = _ms_since(started)
        session.query_ms.append(infer_ms)
        if result.warnings and not session.warned:
            session.warned = True
            logger.warning("%s, the first time: %s", session.peer, "; ".join(result.warnings))
        timing = {
            "infer_ms": infer_ms,
            "queue_ms": queue_ms,
            "prepare_ms": result.prepare_ms,
            "model_ms": result.model_ms,
        }
        if session.prev_total_ms is not None:
            timing["prev_total_ms"] = session.prev_total_ms
        return encode(make_reply(request, result, noise=noise, server_timing=timing))


def bind(host: str, port: int) -> socket.socket:
    """Take the port without opening it: connections are refused until the server listens.

    Raises:
        ConfigError: The port is in use or not allowed, or the host is none of this machine's.
    """
    if not 0 <= port < 2**16:
        raise ConfigError(f"--port {port} is no port; give one from 0 to 65535.")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"--host {host!r} is not a known address ({error.strerror}).") from error
    family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _port_error(f"{host}:{port}", error) from error
    return listener


def serve_until_signal(server: PolicyServer, listener: socket.socket) -> None:
    """Run a server until SIGTERM or SIGINT; a second signal ends the process at once."""
    asyncio.run(_run_until_signal(server, listener))


async def _run_until_signal(server: PolicyServer, listener: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    signals = (signal.SIGTERM, signal.SIGINT)

    def stop() -> None:
        for number in signals:
            loop.remove_signal_handler(number)
        logger.info("stopping after the running queries")
        server.stop()

    for number in signals:
        loop.add_signal_handler(number, stop)
    await server.run(listener)


def _is_worth_a_traceback(record: logging.LogRecord) -> bool:
    """A connection that is no websocket (a port probe, a browser) becomes one line."""
    if record.msg != "opening handshake failed" or not record.exc_info:
        return True
    logger.info("a connection was no websocket: %s", record.exc_info[1])
    return False


library_logger.addFilter(_is_worth_a_traceback)


def _port_error(address: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot listen on {address} ({error.strerror}); stop the process that uses it, "
        "or choose another with --port or --host."
    )


def _address(name: Any) -> str:
    """Write a socket's name as host:port; IPv6 names are longer tuples."""
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ms_since(start: float) -> float:
    return (time.perf_counter() - start) * 1000.0
