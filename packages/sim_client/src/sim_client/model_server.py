"""A policy behind robot.cpp's model-server: images by name, state and prompt in, a chunk out.

What sets it apart from the websocket protocol: it takes no noise, so no result can be reproduced;
it announces nothing about its model but a name; and it may give more numbers per action than the
robot takes, of which the first `action_dim` are kept. Trimming exists on this protocol only, and
every episode in which it happened says so in its warnings.
"""

import dataclasses
import itertools
import re
import socket
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from sim_client import model_server_protocol as protocol
from sim_client.episode import STATE_KEY
from sim_client.errors import ConfigError, PolicyError
from sim_client.model_server_protocol import Op, Prediction
from sim_client.remote_policy import PolicyReply

RUNNER = "model-server"
NOT_REPRODUCIBLE = "the protocol takes no noise"
RETRY_INTERVAL_S = 0.5
RECEIVE_BYTES = 2**16


@dataclasses.dataclass(frozen=True)
class ModelInterface:
    """What goes to the model and what comes back, as the command line states it.

    Attributes:
        image_names: The server's name of each image that is sent, by our request key.
        state_dim: Numbers in the state; nothing is padded or cut.
        action_dim: Numbers kept of each action.
        replan_steps: Actions that a chunk must have at least.
    """

    image_names: Mapping[str, str]
    state_dim: int
    action_dim: int
    replan_steps: int


class ModelServerPolicy:
    """A policy behind a TCP port; one connection per message, as the server's own client does."""

    def __init__(
        self,
        host: str,
        port: int,
        interface: ModelInterface,
        *,
        connect_timeout_s: float,
        query_timeout_s: float,
    ) -> None:
        """Remember where the server is and what its model takes; nothing is sent yet."""
        self._address = (host, port)
        self._interface = interface
        self._connect_timeout_s = connect_timeout_s
        self._query_timeout_s = query_timeout_s
        self._request_ids = itertools.count(1)

    def connect(self) -> str:
        """Wait for the server and return the name of the policy that it reports as healthy.

        Raises:
            ConfigError: Nothing listened within `connect_timeout_s`, or it is no healthy
                model-server.
        """
        deadline = time.monotonic() + self._connect_timeout_s
        while True:
            try:
                socket.create_connection(self._address, self._query_timeout_s).close()
                break
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise ConfigError(
                        f"no model-server answered at {self._where} within "
                        f"{self._connect_timeout_s:g} s ({error}); start one, with "
                        "--args.launch-server and --args.server-command for example, or change "
                        "--args.host or --args.port"
                    ) from error
                time.sleep(RETRY_INTERVAL_S)
        try:
            health = self.health()
        except PolicyError as error:
            raise ConfigError(f"{self._where} is no healthy model-server: {error}") from error
        named = re.fullmatch(r"ok policy=([\w.+-]+)", health.strip())
        if named is None:
            raise ConfigError(
                f"the model-server at {self._where} says {health!r} about its health, expected "
                "'ok policy=NAME'; look into the server"
            )
        return named[1]

    def health(self) -> str:
        """What the server says about itself, e.g. "ok policy=pi0"; raises PolicyError."""
        return self._call(Op.HEALTH).decode(errors="replace")

    def reset(self) -> None:
        """Make the server forget the last episode; called before each; raises PolicyError."""
        self._call(Op.RESET)

    def predict(self, request: Mapping[str, Any]) -> Prediction:
        """Send one observation and return the whole chunk, not trimmed.

        Args:
            request: The robot's keys: images (uint8 HWC), state (float32), prompt.

        Raises:
            PolicyError: The request lacks an image or has another state width than the model, the
                server refused it, is gone, took too long or gave an unusable reply.
        """
        missing = sorted(set(self._interface.image_names) - set(request))
        if missing:
            raise PolicyError(
                f"the request has no image {', '.join(missing)}; change --policy.image-names"
            )
        state = np.asarray(request[STATE_KEY], np.float32)
        if state.shape != (self._interface.state_dim,):
            raise PolicyError(
                f"the state has shape {state.shape}, expected ({self._interface.state_dim},); "
                "nothing is padded or cut, so change --policy.state-dim"
            )
        images = {name: request[key] for key, name in self._interface.image_names.items()}
        payload = protocol.encode_request(images, state, request["prompt"])
        return protocol.decode_prediction(self._call(Op.PREDICT, payload))

    def infer(
        self,
        request: Mapping[str, Any],
        *,
        noise: Float[np.ndarray, "h d"],
        query: Mapping[str, int],
    ) -> PolicyReply:
        """Answer one request of an episode with a chunk of `action_dim` numbers per action.

        Args:
            request: As `predict` takes it.
            noise: Not sent: the protocol has no place for it.
            query: Not sent: each message has an id and a connection of its own.

        Raises:
            PolicyError: As `predict`; or the chunk has fewer actions or numbers than are needed.
        """
        del noise, query
        prediction = self.predict(request)
        n_actions, width = prediction.actions.shape
        kept = self._interface.action_dim
        if n_actions < self._interface.replan_steps:
            raise PolicyError(
                f"the model-server's chunk has {n_actions} actions, expected at least the "
                f"{self._interface.replan_steps} of --args.replan-steps; lower it"
            )
        if width < kept:
            raise PolicyError(
                f"the model-server's actions have {width} numbers each, expected at least the "
                f"{kept} of --policy.action-dim; serve a model for this robot"
            )
        trimmed = (
            f"the model-server's actions have {width} numbers each, the first {kept} are kept",
        )
        return PolicyReply(
            actions=prediction.actions[:, :kept],
            server_timing_ms=prediction.metrics,
            warnings=trimmed if width > kept else (),
        )

    @property
    def _where(self) -> str:
        host, port = self._address
        return f"{host}:{port}"

    def _call(self, op: Op, payload: bytes = b"") -> bytes:
        """Send one message and return the payload of its reply."""
        request_id = next(self._request_ids) % 2**32
        deadline = time.monotonic() + self._query_timeout_s
        try:
            with socket.create_connection(self._address, self._query_timeout_s) as connection:
                connection.sendall(protocol.encode_message(op, request_id, payload))
                header = protocol.decode_header(
                    self._receive(connection, protocol.HEADER.size, deadline)
                )
                reply = self._receive(connection, header.payload_size, deadline)
        except TimeoutError as error:
            raise PolicyError(
                f"the model-server did not answer within {self._query_timeout_s:g} s; raise "
                "--args.query-timeout-s"
            ) from error
        except OSError as error:
            raise PolicyError(
                f"the connection to the model-server at {self._where} broke: {error}"
            ) from error
        if header.status != 0:
            text = reply.decode(errors="replace")
            raise PolicyError(
                f"the model-server refused {op.name.lower()} with status {header.status}: {text}"
            )
        if (header.op, header.request_id) != (op, request_id):
            raise PolicyError(
                f"asked {op.name.lower()} as message {request_id}, the reply answers operation "
                f"{header.op} of message {header.request_id}"
            )
        return reply

    def _receive(self, connection: socket.socket, size: int, deadline: float) -> bytes:
        """Read exactly `size` bytes before `deadline`, however slowly they come."""
        data = bytearray()
        while len(data) < size:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError
            connection.settimeout(remaining_s)
            received = connection.recv(min(size - len(data), RECEIVE_BYTES))
            if not received:
                raise ConnectionError("it was closed before the reply was whole")
            data += received
        return bytes(data)
