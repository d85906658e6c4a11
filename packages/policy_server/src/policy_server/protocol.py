"""openpi's websocket protocol without any I/O: frames to requests, results to replies.

A frame is a msgpack map with arrays as `openpi_client.msgpack_numpy` writes them; the dialect of
the package msgpack-numpy, which unpickles objects, is never spoken.
"""

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
from jaxtyping import Float, Float32
from openpi_client import msgpack_numpy

from policy_server.errors import RequestError

PROTOCOL_NAME = "openpi-pi05-eval"
PROTOCOL_VERSION = 1
MAX_REQUEST_BYTES = 16 * 2**20  # a request with three 224x224 images has 0.45 MB
# A few bytes can declare a list of 16 million places, and nest it a thousand times.
MAX_LIST_LENGTH = 4096
MAX_MAP_LENGTH = 256
MAX_CONTAINERS = 10_000

NOT_REPRODUCIBLE = "the request had no noise, so the server drew it: not reproducible"

QUERY_KEYS = ("ep_id", "query_idx", "request_id")
_PLAIN_DTYPE = re.compile(r"[<>|=]?(b1|[iuf][1248]|f16|[US][1-9][0-9]{0,5})")


@dataclasses.dataclass(frozen=True)
class Request:
    """One decoded request.

    Attributes:
        observation: The robot's keys: images, state, prompt; checked further on.
        noise: Start noise of the flow, shape (action_horizon, action_dim), None if none came.
        query: The client's name for this query, echoed in the reply; None if none came.
    """

    observation: dict[str, Any]
    noise: Float32[np.ndarray, "h a"] | None
    query: dict[str, int | str] | None


@dataclasses.dataclass(frozen=True)
class NoiseSpec:
    """What the noise of a request must look like.

    Attributes:
        shape: (action_horizon, action_dim).
        required: Whether a request without noise is refused.
        seed: Seed of the noise that the server draws for a request without.
    """

    shape: tuple[int, int]
    required: bool
    seed: int

    def draw(self, query_index: int) -> Float32[np.ndarray, "h a"]:
        """Noise for a request that brought none: a function of the seed and its place in line."""
        rng = np.random.default_rng([self.seed, query_index])
        return rng.standard_normal(self.shape).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Inference:
    """What the policy gives for one request.

    Attributes:
        actions: The chunk in the robot's units, shape (action_horizon, robot's action width).
        warnings: What the request path noticed about this request.
        prepare_ms: Time from the observation to the model's input.
        model_ms: Time of the model alone, to the finished array.
    """

    actions: Float[np.ndarray, "h w"]
    warnings: tuple[str, ...]
    prepare_ms: float
    model_ms: float


def decode_request(frame: bytes | str, noise: NoiseSpec) -> Request:
    """Take a frame apart and check what does not depend on the robot.

    Raises:
        RequestError: The frame is no msgpack map with text keys, holds arrays of another kind than
            numbers and text, or its noise or query is not as announced.
    """
    if isinstance(frame, str):
        raise RequestError("the request is a text frame, expected a binary frame of msgpack.")
    if len(frame) > MAX_REQUEST_BYTES:
        raise RequestError(
            f"the request has {len(frame)} bytes, at most {MAX_REQUEST_BYTES} are taken; "
            "send smaller images."
        )
    hooks = _Hooks()
    try:
        fields = msgpack.unpackb(
            frame,
            object_hook=hooks.decode_map,
            list_hook=hooks.decode_list,
            max_array_len=MAX_LIST_LENGTH,
            max_map_len=MAX_MAP_LENGTH,
        )
    except RequestError:
        raise
    except (ValueError, TypeError, KeyError, OverflowError, msgpack.UnpackException) as error:
        detail = str(error) or type(error).__name__
        raise RequestError(
            f"the request is not valid msgpack with openpi arrays: {detail}."
        ) from error
    if not isinstance(fields, dict):
        raise RequestError(
            f"the request is a {type(fields).__name__}, expected a map of observation keys."
        )
    for key in fields:
        if not isinstance(key, str):
            raise RequestError(f"the request has the key {key!r}, expected keys that are text.")
    sent_noise = fields.pop("noise", None)
    query = fields.pop("query", None)
    return Request(
        observation=fields,
        noise=_check_noise(sent_noise, noise),
        query=None if query is None else _check_query(query),
    )


class _Hooks:
    """What msgpack calls for each container of one frame."""

    def __init__(self) -> None:
        self._n_containers = 0

    def decode_list(self, items: list[Any]) -> list[Any]:
        self._count()
        return items

    def decode_map(self, mapping: dict[Any, Any]) -> Any:
        self._count()
        return _decode_array(mapping)

    def _count(self) -> None:
        self._n_containers += 1
        if self._n_containers > MAX_CONTAINERS:
            raise RequestError(
                f"the request holds more than {MAX_CONTAINERS} maps and lists; send arrays as "
                "openpi's client does."
            )


def _decode_array(mapping: dict[Any, Any]) -> Any:
    """Decode one array or numpy scalar, refusing dtypes that are not plain numbers or text."""
    if b"__ndarray__" in mapping or b"__npgeneric__" in mapping:
        dtype = mapping.get(b"dtype")
        if not isinstance(dtype, str) or not _PLAIN_DTYPE.fullmatch(dtype):
            raise RequestError(
                f"the request holds an array of dtype {dtype!r}, expected plain numbers or text."
            )
    return msgpack_numpy.unpack_array(mapping)


def _check_noise(sent: object, spec: NoiseSpec) -> Float32[np.ndarray, "h a"] | None:
    if sent is None:
        if spec.required:
            raise RequestError(
                "the request has no noise and this server requires it; send float32 noise of shape "
                f"{spec.shape}, or start the server without --policy.require-noise."
            )
        return None
    if not isinstance(sent, np.ndarray):
        raise RequestError(
            f"noise is a {type(sent).__name__}, expected a float32 array of shape {spec.shape}."
        )
    if sent.shape != spec.shape:
        raise RequestError(
            f"noise has shape {sent.shape}, expected {spec.shape} (action_horizon, action_dim)."
        )
    if sent.dtype != np.float32:
        raise RequestError(f"noise has dtype {sent.dtype}, expected float32.")
    if not np.isfinite(sent).all():
        raise RequestError("noise holds NaN or infinite numbers, expected finite ones.")
    return sent


def _check_query(sent: object) -> dict[str, int | str]:
    expected = f"expected a map of {', '.join(QUERY_KEYS)} to integers or text"
    if not isinstance(sent, dict):
        raise RequestError(f"query is a {type(sent).__name__}, {expected}.")
    for key, value in sent.items():
        if key not in QUERY_KEYS:
            raise RequestError(f"query has the key {key!r}, {expected}.")
        if type(value) not in (int, str):
            raise RequestError(f"query has {key} of type {type(value).__name__}, {expected}.")
    return sent


def noise_sha256(noise: Float32[np.ndarray, "h a"]) -> str:
    """SHA-256 of the noise's bytes: float32, little-endian, C order."""
    return hashlib.sha256(np.ascontiguousarray(noise, dtype="<f4").tobytes()).hexdigest()


def make_reply(
    request: Request,
    result: Inference,
    *,
    noise: Float32[np.ndarray, "h a"],
    server_timing: Mapping[str, float],
) -> dict[str, Any]:
    """Build the reply; its first three keys are those of openpi's own server.

    Args:
        request: What is answered.
        result: What the policy gave for it.
        noise: The noise that was used.
        server_timing: Milliseconds by name; `infer_ms` is the whole inference.
    """
    reply: dict[str, Any] = {
        "actions": np.asarray(result.actions, dtype=np.float64),
        "policy_timing": {"infer_ms": result.model_ms},
        "server_timing": dict(server_timing),
        "noise_source": "client",
        "noise_sha256": noise_sha256(noise),
        "warnings": list(result.warnings),
    }
    if request.noise is None:
        reply["noise_source"] = "server"
        reply["warnings"].append(NOT_REPRODUCIBLE)
    if request.query is not None:
        reply["query"] = request.query
    return reply


def encode(message: Mapping[str, Any]) -> bytes:
    """Pack metadata or a reply as openpi's client reads it."""
    packed = msgpack_numpy.packb(message)
    assert packed is not None  # msgpack's stub allows None for a packer without autoreset
    return packed
