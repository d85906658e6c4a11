"""The bytes of robot.cpp's model-server protocol, version 3, without any input or output.

A message is a header of 32 bytes and a payload; everything is little-endian. Health and reset
answer with text, predict with an action chunk and measurements; a status other than 0 makes the
payload the text of an error.

Source of the layout: robot.cpp robot_server/protocol.h, robot_client/python/model_client.py
(87ec5c5).
"""

import dataclasses
import enum
import struct
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float32, Float64, UInt8

from sim_client.errors import PolicyError

MAGIC = 0x414C5653
VERSION = 3
MAX_REPLY_BYTES = 16 * 2**20  # a reply is some 10 kB
RAW_RGB_U8 = 1  # the only image format there is

# magic, version, header size, op, flags, request id, status, payload size, reserved
HEADER = struct.Struct("<IHHHHIIQI")
REQUEST_COUNTS = struct.Struct("<III")  # images, state values, bytes of the prompt
# format, bytes of the name, width, height, channels, bytes of a row, bytes of the image
REQUEST_IMAGE = struct.Struct("<IIIIIIQ")
REPLY_COUNTS = struct.Struct("<IIII")  # actions, numbers in each, numbers in all, measurements
REPLY_METRIC = struct.Struct("<Id")  # bytes of the name, value


class Op(enum.IntEnum):
    """What a message asks for."""

    HEALTH = 1
    RESET = 2
    PREDICT = 3


@dataclasses.dataclass(frozen=True)
class Header:
    """The head of a reply, as far as it varies."""

    op: int
    request_id: int
    status: int
    payload_size: int


@dataclasses.dataclass(frozen=True)
class Prediction:
    """The answer to a predict message.

    Attributes:
        actions: The whole chunk, shape (chunk size, the server's action width), not trimmed.
        metrics: The server's measurements by name; its names end in their unit.
    """

    actions: Float64[np.ndarray, "h d"]
    metrics: dict[str, float]


def encode_message(op: Op, request_id: int, payload: bytes = b"") -> bytes:
    """A request: header and payload."""
    header = HEADER.pack(MAGIC, VERSION, HEADER.size, op, 0, request_id, 0, len(payload), 0)
    return header + payload


def decode_header(data: bytes) -> Header:
    """Read the 32 bytes in front of a reply.

    Raises:
        PolicyError: They are not a header of this protocol and version, or announce too much.
    """
    magic, version, size, op, _, request_id, status, payload_size, _ = HEADER.unpack(data)
    if magic != MAGIC:
        raise PolicyError(
            f"the reply starts with 0x{magic:08x}, expected 0x{MAGIC:08x}; "
            "--args.port is not a model-server's, or choose another --policy.protocol"
        )
    if version != VERSION or size != HEADER.size:
        raise PolicyError(
            f"the model-server speaks version {version} with headers of {size} bytes, this client "
            f"version {VERSION} with {HEADER.size}; use a model-server of that version"
        )
    if payload_size > MAX_REPLY_BYTES:
        raise PolicyError(
            f"the model-server announces a reply of {payload_size} bytes, expected at most "
            f"{MAX_REPLY_BYTES}; look into the server"
        )
    return Header(op, request_id, status, payload_size)


def encode_request(
    images: Mapping[str, UInt8[np.ndarray, "height width 3"]],
    state: Float32[np.ndarray, " d"],
    prompt: str,
) -> bytes:
    """The payload of a predict message.

    Args:
        images: RGB images by the server's own names, shape (height, width, 3), at least one.
        state: What the model takes, in its order, shape (d,).
        prompt: The language instruction.
    """
    text = prompt.encode()
    parts = [REQUEST_COUNTS.pack(len(images), len(state), len(text))]
    bodies = [np.ascontiguousarray(state, "<f4").tobytes(), text]
    for name, image in images.items():
        height, width, channels = image.shape
        row = width * channels
        name_bytes = name.encode()
        parts.append(
            REQUEST_IMAGE.pack(
                RAW_RGB_U8, len(name_bytes), width, height, channels, row, row * height
            )
        )
        bodies += [name_bytes, image.tobytes(order="C")]
    return b"".join(parts + bodies)


def decode_prediction(payload: bytes) -> Prediction:
    """Read the payload of a predict reply.

    Raises:
        PolicyError: Its counts and its length do not belong together, or a number is not finite.
    """
    try:
        chunk_size, width, n_numbers, n_metrics = REPLY_COUNTS.unpack_from(payload)
        position = REPLY_COUNTS.size
        metrics: dict[str, float] = {}
        for _ in range(n_metrics):
            name_size, value = REPLY_METRIC.unpack_from(payload, position)
            position += REPLY_METRIC.size
            metrics[payload[position : position + name_size].decode(errors="replace")] = value
            position += name_size
    except struct.error as error:
        raise PolicyError(
            f"the model-server's reply of {len(payload)} bytes ends too early ({error}); "
            "look into the server"
        ) from error
    if n_numbers != chunk_size * width or len(payload) != position + 4 * n_numbers:
        raise PolicyError(
            f"the model-server's reply announces {chunk_size} actions of {width} numbers, "
            f"{n_numbers} numbers in all, and carries {len(payload) - position} bytes of them; "
            "look into the server"
        )
    actions = np.frombuffer(payload, "<f4", n_numbers, position).astype(np.float64)
    if not np.isfinite(actions).all() or not np.isfinite(list(metrics.values())).all():
        raise PolicyError("the reply's actions or measurements are not finite")
    return Prediction(actions.reshape(chunk_size, width), metrics)
