"""Fakes for the client's unit tests: a simulator without physics, a server without a model."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import websockets.exceptions
import websockets.sync.server
from openpi_client import msgpack_numpy

from sim_client.envs.base import Observation, StepResult
from sim_client.envs.registry import MakeEnv, Sim
from sim_client.errors import SimError
from sim_client.remote_policy import noise_digest, pack

STATE_LAYOUT = (("position", 2),)
ACTION_LAYOUT = (("velocity", 2),)
IMAGE_KEYS = ("observation/image",)
HORIZON, ACTION_DIM = 8, 4

METADATA: dict[str, Any] = {
    "protocol": {"name": "pi05-eval", "version": 1},
    "arm": "fake",
    "action_horizon": HORIZON,
    "action_dim": ACTION_DIM,
    "replan_steps": 5,
    "robot": {
        "name": "point",
        "state_layout": [["position", 2]],
        "action_layout": [["velocity", 2]],
        "image_keys": ["observation/image"],
    },
    "norm_stats": {"mode": "zscore", "asset": "a", "sha256": "0", "width": 2},
    "checkpoint": {"name": "c", "digest": "0", "params_kind": "raw", "step": None},
    "tokenizer": {"sha256": "0"},
    "transforms_sha256": "0",
    "determinism": {"xla_flags": "", "deterministic": True, "why": ""},
    "versions": {},
    "device": {"platform": "cpu", "kind": "cpu"},
    "noise": {"required": False, "shape": [HORIZON, ACTION_DIM], "dtype": "float32"},
    "sample_steps": 10,
    "compute_dtype": "bfloat16",
    "weights": "f32",
    "server_revision": "r",
    "protocol_deviation": [],
    "max_batch": 1,
}


class PointEnv:
    """A point that moves by its actions; it succeeds once its first coordinate passes `goal`."""

    sim_name, task, control_hz, robot = "point", "Reach", 20.0, "point"
    state_layout, action_layout, image_keys = STATE_LAYOUT, ACTION_LAYOUT, IMAGE_KEYS

    def __init__(
        self,
        *,
        goal: float = np.inf,
        max_steps: int = 12,
        breaks_at: int | None = None,
        broken_episodes: float = np.inf,
    ) -> None:
        self.max_steps = max_steps
        self.goal = goal
        self.breaks_at = breaks_at
        self.broken_episodes = broken_episodes
        self.resets = 0
        self.renders = 0
        self.closed = False

    def reset(self, ep_id: int) -> None:
        self.position = np.random.default_rng(ep_id).standard_normal(2)
        self.steps = 0
        self.resets += 1
        if self.resets > self.broken_episodes:
            self.breaks_at = None

    def observe(self) -> Observation:
        self.renders += 1
        frame = np.full((32, 32, 3), int(abs(self.position[0]) * 10) % 256, np.uint8)
        return Observation({"observation/image": frame}, self.position.astype(np.float32), "Reach.")

    def video_frame(self) -> np.ndarray:
        return np.full((32, 32, 3), self.steps, np.uint8)

    def step(self, action: np.ndarray) -> StepResult:
        if self.steps == self.breaks_at:
            raise SimError("the point broke")
        self.position = self.position + action
        self.steps += 1
        success = bool(self.position[0] > self.goal)
        return StepResult(success=success, reward=float(success), terminated=False)

    def scene(self) -> dict[str, Any]:
        return {"goal": str(self.goal)}

    def physics_state(self) -> np.ndarray:
        return np.array([self.steps, *self.position], np.float64)

    def stages(self) -> dict[str, bool]:
        return {"moved": self.steps > 0}

    def versions(self) -> dict[str, str]:
        return {"point": "1"}

    def close(self) -> None:
        self.closed = True


def point_sim(make: MakeEnv) -> Sim:
    """The point simulator under the name of a real one."""
    return Sim(
        name="robosuite",
        robot="point",
        state_layout=STATE_LAYOUT,
        action_layout=ACTION_LAYOUT,
        image_keys=IMAGE_KEYS,
        check_task=lambda task: None,
        make=make,
    )


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """A policy that is a function of the request: it plays the noise."""
    return {
        "actions": request["noise"][:, :2].astype(np.float64),
        "query": request["query"],
        "noise_sha256": noise_digest(request["noise"]),
        "noise_source": "client",
        "server_timing": {"infer_ms": 1.5},
        "policy_timing": {"infer_ms": 1.0},
        "warnings": [],
    }


Answer = Callable[[dict[str, Any]], dict[str, Any] | str | None]


@contextlib.contextmanager
def policy_server(
    reply: Answer = answer, metadata: dict[str, Any] | None = None, port: int = 0
) -> Iterator[int]:
    """Serve `reply` on a real websocket; yields the port. A str is sent as text, None hangs up."""

    def handle(connection: websockets.sync.server.ServerConnection) -> None:
        connection.send(pack(METADATA if metadata is None else metadata))
        with contextlib.suppress(websockets.exceptions.ConnectionClosed):
            for frame in connection:
                content = reply(msgpack_numpy.unpackb(frame))
                if content is None:
                    return
                connection.send(content if isinstance(content, str) else pack(content))

    with websockets.sync.server.serve(handle, "127.0.0.1", port, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.socket.getsockname()[1]
        finally:
            server.shutdown()
            thread.join()
