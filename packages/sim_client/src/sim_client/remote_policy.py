"""The client's end of openpi's websocket protocol, with time limits and checked replies.

`openpi_client.WebsocketClientPolicy` waits for a server for ever, is killed by its own keepalive
when a query takes longer than about 40 seconds, and believes any reply. The frames are the same:
binary msgpack with `openpi_client.msgpack_numpy` arrays, the server's metadata first, a text frame
for an error.
"""

import dataclasses
import hashlib
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import numpy as np
import websockets.exceptions
import websockets.sync.client
from jaxtyping import Float
from openpi_client import msgpack_numpy
from websockets.exceptions import InvalidStatus

from sim_client.errors import ConfigError, ContractError, PolicyError

MAX_FRAME_BYTES = 16 * 2**20  # a reply is some 10 kB; the server limits requests to the same size
RETRY_INTERVAL_S = 0.5


@dataclasses.dataclass(frozen=True)
class PolicyReply:
    """One answer of the server.

    Attributes:
        actions: The chunk, shape (action_horizon, action width of the robot), in the order of the
            robot's action layout, as the policy returned it (float64, not clipped).
        server_timing_ms: The server's own measurements, milliseconds by name.
        warnings: What the server has to say about this request.
    """

    actions: Float[np.ndarray, "h d"]
    server_timing_ms: dict[str, float]
    warnings: tuple[str, ...]


def noise_digest(noise: Float[np.ndarray, "h d"]) -> str:
    """SHA-256 of the noise's bytes (float32, C order, little-endian), as the server echoes it."""
    return hashlib.sha256(np.ascontiguousarray(noise, "<f4").tobytes()).hexdigest()


class RemotePolicy:
    """A policy behind a websocket; one connection, one query at a time."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connect_timeout_s: float,
        query_timeout_s: float,
        api_key: str | None = None,
    ) -> None:
        """Remember where the server is; `connect` opens the connection.

        Args:
            host: Name or address; with ws:// or wss:// in front it chooses plain or TLS itself.
            port: The server's port.
            connect_timeout_s: How long to wait for a server, seconds.
            query_timeout_s: How long one answer may take, seconds.
            api_key: Sent as openpi's client sends its own, None sends none.
        """
        self._uri = f"{host}:{port}" if host.startswith("ws") else f"ws://{host}:{port}"
        self._headers = {"Authorization": f"Api-Key {api_key}"} if api_key else None
        self._connect_timeout_s = connect_timeout_s
        self._query_timeout_s = query_timeout_s
        self._connection: websockets.sync.client.ClientConnection | None = None
        self._metadata: dict[str, Any] | None = None

    def connect(self) -> dict[str, Any]:
        """Open the connection, waiting for the server, and return the metadata it announces.

        Raises:
            ConfigError: Nothing answered within `connect_timeout_s`, or the API key was refused.
            ContractError: A server came back with other metadata than the one before.
        """
        deadline = time.monotonic() + self._connect_timeout_s
        while True:
            try:
                self._connection = websockets.sync.client.connect(
                    self._uri,
                    compression=None,
                    max_size=MAX_FRAME_BYTES,
                    ping_interval=None,  # a query may take minutes on a CPU; recv has its own limit
                    proxy=None,
                    additional_headers=self._headers,
                )
                frame = self._connection.recv(timeout=self._query_timeout_s)
                break
            except (OSError, TimeoutError, websockets.exceptions.WebSocketException) as error:
                _refuse_unauthorized(error, self._uri)
                if time.monotonic() >= deadline:
                    raise ConfigError(
                        f"no policy server answered at {self._uri} within "
                        f"{self._connect_timeout_s:g} s ({type(error).__name__}: {error}); start "
                        "one with ./serve.sh, or change --args.host, --args.port or "
                        "--args.connect-timeout-s"
                    ) from error
                time.sleep(RETRY_INTERVAL_S)
        metadata = _decode_map(frame, "the server's first frame")
        if self._metadata is not None and metadata != self._metadata:
            changed = sorted(
                k for k in metadata | self._metadata if metadata.get(k) != self._metadata.get(k)
            )
            raise ContractError(
                f"the server at {self._uri} came back with other metadata ({', '.join(changed)}); "
                "start the same server again, or a new run with another --args.log-dir"
            )
        self._metadata = metadata
        return metadata

    def infer(
        self,
        request: Mapping[str, Any],
        *,
        noise: Float[np.ndarray, "h d"],
        query: Mapping[str, int],
    ) -> PolicyReply:
        """Send one request and return the checked reply.

        Args:
            request: The robot's keys: images (uint8 HWC), state (float32), prompt.
            noise: Start noise of the flow, shape (action_horizon, action_dim), float32.
            query: Numbers that name this query; the server must echo them.

        Raises:
            PolicyError: The server refused the request, is gone, took too long, or its reply is not
                the answer to this request.
        """
        if self._connection is None:
            self.connect()
        assert self._connection is not None
        message = pack({**request, "noise": noise, "query": dict(query)})
        try:
            self._connection.send(message)
            frame = self._connection.recv(timeout=self._query_timeout_s)
        except TimeoutError as error:
            self.close()  # a late answer must never be taken for the answer to the next query
            raise PolicyError(
                f"the server did not answer within {self._query_timeout_s:g} s; raise "
                "--args.query-timeout-s"
            ) from error
        except (OSError, websockets.exceptions.ConnectionClosed) as error:
            self.close()
            raise PolicyError(f"the connection to {self._uri} broke: {error}") from error
        if isinstance(frame, str):
            raise PolicyError(f"the server refused the request: {frame}")
        return _check_reply(_decode_map(frame, "a reply"), noise=noise, query=query)

    def close(self) -> None:
        """Close the connection; the next query opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _refuse_unauthorized(error: Exception, uri: str) -> None:
    """Waiting does not help where the server asks for another key."""
    status = error.response.status_code if isinstance(error, InvalidStatus) else None
    if status == HTTPStatus.UNAUTHORIZED:
        raise ConfigError(
            f"the server at {uri} asks for its API key; give it with --args.api-key-file or "
            "$PI05_API_KEY"
        ) from error


def pack(content: Mapping[str, Any]) -> bytes:
    """Encode a map as the protocol does: msgpack with openpi_client's form of numpy arrays."""
    return bytes(msgpack_numpy.packb(content) or b"")


def _decode_map(frame: str | bytes, what: str) -> dict[str, Any]:
    """Decode a binary frame that must hold a map."""
    if isinstance(frame, str):
        raise PolicyError(f"{what} is a text frame: {frame}")
    try:
        decoded = msgpack_numpy.unpackb(frame)
    except (ValueError, TypeError) as error:  # msgpack's own errors derive from ValueError
        raise PolicyError(f"{what} is not msgpack: {error}") from error
    if not isinstance(decoded, dict):
        raise PolicyError(f"{what} is a {type(decoded).__name__}, expected a map")
    return decoded


def _check_reply(
    reply: Mapping[str, Any], *, noise: Float[np.ndarray, "h d"], query: Mapping[str, int]
) -> PolicyReply:
    """Refuse a reply that is not the answer to the request that was sent."""
    if reply.get("query") != dict(query):
        raise PolicyError(f"asked {dict(query)}, the reply answers {reply.get('query')}")
    if reply.get("noise_sha256") != noise_digest(noise):
        raise PolicyError(
            "the server did not use the noise of the request (its noise_sha256 differs)"
        )
    actions = reply.get("actions")
    if not isinstance(actions, np.ndarray) or actions.ndim != 2 or len(actions) != len(noise):
        shape = getattr(actions, "shape", type(actions).__name__)
        raise PolicyError(f"the reply's actions have shape {shape}, expected ({len(noise)}, width)")
    if not np.isfinite(actions).all():
        raise PolicyError("the reply's actions are not finite")
    return PolicyReply(
        actions=np.asarray(actions, np.float64),
        server_timing_ms={k: float(v) for k, v in reply.get("server_timing", {}).items()},
        warnings=tuple(reply.get("warnings", ())),
    )
