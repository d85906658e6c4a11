"""Reads a request by a robot's table, and refuses what is not in it.

openpi drops unknown keys in silence. Here a key under `observation/` and anything that looks like
an image must be known, since a misspelt camera would go unnoticed; other keys are ignored.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float64, UInt8

from policy_server.errors import RequestError
from policy_server.images import parse_image, resize_with_pad
from policy_server.robots import RobotSpec, StateInput, layout_width

_PROMPT = "prompt"
_NOT_OURS = ("noise", "query")  # the server's


def refuse_unknown_keys(robot: RobotSpec, request: Mapping[str, Any]) -> None:
    """Refuse keys that look like observations and are none of the robot's.

    Raises:
        RequestError: Naming the key and the robot's keys.
    """
    images = [camera.key for camera in robot.cameras]
    states = [state.key for state in robot.state_inputs]
    known = [*(images if robot.images_key is None else [robot.images_key]), *states, _PROMPT]
    for key, sent in request.items():
        if key in known or key in _NOT_OURS:
            continue
        looks_like_image = isinstance(sent, np.ndarray) and sent.ndim >= 3
        if key.startswith("observation/") or looks_like_image:
            raise RequestError(
                f"{key!r} is no key of robot {robot.name!r}, expected {', '.join(known)}."
            )


def read_images(
    robot: RobotSpec, request: Mapping[str, Any]
) -> dict[str, UInt8[np.ndarray, "224 224 3"]]:
    """Take the robot's images out of a request.

    Returns:
        Resized images by the model's slots; a camera that need not be there may be missing.

    Raises:
        RequestError: An image is missing, unknown or not as `parse_image` demands.
    """
    sent = _image_map(robot, request)
    images = {}
    for camera in robot.cameras:
        path = robot.image_path(camera.key)
        if camera.key in sent:
            parsed = parse_image(path, sent[camera.key], channels_first=robot.channels_first)
            images[camera.slot] = resize_with_pad(parsed)
        elif camera.required:
            raise RequestError(f"{path!r} is missing, expected an image.")
    return images


def _image_map(robot: RobotSpec, request: Mapping[str, Any]) -> Mapping[str, Any]:
    if robot.images_key is None:
        return request
    cameras = (*(camera.key for camera in robot.cameras), *robot.ignored_cameras)
    sent = request.get(robot.images_key)
    if not isinstance(sent, Mapping):
        raise RequestError(
            f"{robot.images_key!r} is missing or no map, expected a map with {', '.join(cameras)}."
        )
    for key in sent:
        if key not in cameras:
            raise RequestError(
                f"{robot.images_key!r} holds {key!r}, expected only {', '.join(cameras)}."
            )
    return sent


def read_state(robot: RobotSpec, request: Mapping[str, Any]) -> Float64[np.ndarray, " d"]:
    """Take the robot's state out of a request and join its vectors.

    Returns:
        The state in the robot's units, shape (robot.state_width,); a new array.

    Raises:
        RequestError: A vector is missing, of another width, not numeric or not finite.
    """
    return np.concatenate([_read_vector(state, request) for state in robot.state_inputs])


def _read_vector(state: StateInput, request: Mapping[str, Any]) -> Float64[np.ndarray, " d"]:
    width = layout_width(state.layout)
    expected = f"expected {width} finite numbers ({', '.join(name for name, _ in state.layout)})"
    if state.key not in request:
        raise RequestError(f"{state.key!r} is missing, {expected}.")
    sent = request[state.key]
    if isinstance(sent, int | float | np.number):  # openpi's clients send a gripper as one number
        sent = np.asarray(sent)
    if not isinstance(sent, np.ndarray):
        raise RequestError(f"{state.key!r} is of type {type(sent).__name__}, {expected}.")
    vector = sent.reshape(1) if sent.ndim == 0 else sent
    if vector.shape != (width,) or vector.dtype.kind not in "fiu":
        raise RequestError(
            f"{state.key!r} has shape {sent.shape} and dtype {sent.dtype}, {expected}."
        )
    if not np.isfinite(vector).all():
        place = int(np.argmin(np.isfinite(vector)))
        raise RequestError(f"{state.key!r} holds {vector[place]} at index {place}, {expected}.")
    return vector.astype(np.float64)


def read_prompt(robot: RobotSpec, request: Mapping[str, Any]) -> str:
    """Take the prompt out of a request; it may be empty, and an array of no dimension.

    Raises:
        RequestError: It is missing or no text.
    """
    if _PROMPT not in request:
        raise RequestError("'prompt' is missing, expected text.")
    sent = request[_PROMPT]
    came = f"of type {type(sent).__name__}"
    if isinstance(sent, np.ndarray):
        came = f"an array of shape {sent.shape} and dtype {sent.dtype}"
    try:
        if isinstance(sent, np.ndarray) and sent.ndim == 0:
            sent = sent.item()
        if isinstance(sent, bytes) and robot.prompt_may_be_bytes:
            sent = sent.decode()
        if isinstance(sent, str):
            sent.encode()  # a lone surrogate has no UTF-8, which SentencePiece takes
            return str(sent)
    except ValueError as error:  # a UnicodeError, or NumPy's for a number that is no character
        raise RequestError("'prompt' is not valid Unicode, expected text.") from error
    raise RequestError(f"'prompt' is {came}, expected text.")
