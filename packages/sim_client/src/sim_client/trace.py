"""What an episode saw and did, as digests and numbers, in one npz without pickles.

Equal episodes give equal files, byte for byte: numpy writes members in order, with a fixed date.

Members, for Q queries, T steps, cameras k and chunks of H actions of width D:
    query_step (Q,) int32                 the step before which the query was made
    prompt (Q,) str                       as sent
    state (Q, S) float32                  as sent
    noise_digest (Q, 32) uint8            SHA-256 of the noise's float32 bytes, of none where
                                          the protocol takes none
    camera_digest/<k> (Q, 32) uint8       SHA-256 of the frame as the simulator gave it
    image_digest/<k> (Q, 32) uint8        SHA-256 of the image as sent
    chunk (Q, H, D) float64               the whole reply
    action (T, D) float64                 what was played, before the simulator's conversion
    physics_digest (T + 1, 32) uint8      SHA-256 of time, qpos, qvel, act; entry 0 is after reset
    physics (T + 1, N) float64            the same numbers themselves, with `--args.trace full` only
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8


def array_digest(array: np.ndarray) -> bytes:
    """SHA-256 of an array's bytes in C order (the shape and dtype are the caller's to fix)."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


class TraceRecorder:
    """Collects one episode's trace."""

    def __init__(self, *, full: bool) -> None:
        """Start empty; `full` keeps the physics state itself beside its digest."""
        self._full = full
        self._query: dict[str, list[Any]] = {}
        self._actions: list[np.ndarray] = []
        self._physics: list[np.ndarray] = []

    @property
    def actions(self) -> Float[np.ndarray, "t d"]:
        """The actions played so far, shape (steps, width)."""
        return np.asarray(self._actions, np.float64)

    @property
    def n_queries(self) -> int:
        """How many queries were recorded."""
        return len(self._query.get("query_step", []))

    def physics_digest(self, step: int) -> str:
        """Hex digest of the physics state after `step` steps; -1 is the latest."""
        return array_digest(self._physics[step]).hex()

    def add_physics(self, state: Float[np.ndarray, " n"]) -> None:
        """Record the physics state, shape (n,): once after the reset, then after every step."""
        self._physics.append(np.array(state, np.float64))

    def add_query(
        self,
        step: int,
        *,
        camera_frames: Mapping[str, UInt8[np.ndarray, "height width 3"]],
        request: Mapping[str, Any],
        state_key: str,
        noise: Float[np.ndarray, "k a"],
        chunk: Float[np.ndarray, "h d"],
    ) -> None:
        """Record a query: what was rendered, what was sent and what came back."""
        row: dict[str, Any] = {
            "query_step": step,
            "prompt": request["prompt"],
            "state": request[state_key],
            "noise_digest": array_digest(noise),
            "chunk": chunk,
        }
        for key, frame in camera_frames.items():
            row[f"camera_digest/{key}"] = array_digest(frame)
            row[f"image_digest/{key}"] = array_digest(request[key])
        for name, value in row.items():
            self._query.setdefault(name, []).append(value)

    def add_action(self, action: Float[np.ndarray, " d"]) -> None:
        """Record the action of one step, shape (d,)."""
        self._actions.append(np.array(action, np.float64))

    def arrays(self) -> dict[str, np.ndarray]:
        """All members of the trace by name."""
        members: dict[str, np.ndarray] = {}
        for name, values in self._query.items():
            if isinstance(values[0], bytes):
                members[name] = _digest_rows(values)
            else:
                dtype = np.int32 if name == "query_step" else None
                members[name] = np.asarray(values, dtype)
        members["action"] = self.actions
        members["physics_digest"] = _digest_rows([array_digest(s) for s in self._physics])
        if self._full:
            members["physics"] = np.stack(self._physics)
        return members

    def save(self, path: Path) -> None:
        """Write the npz to `path`."""
        members: dict[str, Any] = self.arrays()
        np.savez_compressed(path, allow_pickle=False, **members)


def _digest_rows(digests: list[bytes]) -> UInt8[np.ndarray, "n 32"]:
    """Digests as rows of bytes, shape (n, 32), uint8."""
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, hashlib.sha256().digest_size)
