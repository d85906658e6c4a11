"""From the picture in a request to the picture that the model was trained on."""

from typing import Any

import numpy as np
from jaxtyping import Float, Shaped, UInt8
from openpi_client import image_tools

from policy_server.errors import RequestError

IMAGE_SIZE = 224  # pixels; the vision tower's, in both directions


def to_uint8(
    image: UInt8[np.ndarray, "*s"] | Float[np.ndarray, "*s"],
) -> UInt8[np.ndarray, "*s"]:
    """Turn floats in [0, 1] into levels by truncation of 255 x; uint8 comes back as it is.

    Source:
        openpi-client 0.1.2 image_tools.convert_to_uint8; openpi src/openpi/policies/*.py (15a9616)
        do the same.
    """
    return image_tools.convert_to_uint8(image)


def resize_with_pad(image: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "224 224 3"]:
    """Shrink or enlarge to fit 224x224, centred on black, by PIL's antialiased bilinear filter.

    An image of that size comes back as it is. The JAX resize of openpi's model differs by one level
    on up to a fifth of the pixels; the served path never uses it.

    Source:
        openpi-client 0.1.2 image_tools.resize_with_pad.
    """
    return image_tools.resize_with_pad(image, IMAGE_SIZE, IMAGE_SIZE)


def parse_image(key: str, sent: Any, *, channels_first: bool) -> UInt8[np.ndarray, "h w 3"]:
    """Check a request's image and bring it to uint8 with the channels last.

    Args:
        key: Name of the image in the request, for the message.
        sent: What came under that name.
        channels_first: Whether the robot takes (3, h, w) only. Otherwise (h, w, 3) is taken too,
            and an array whose first axis is 3 long is read as (3, h, w), as openpi does.

    Returns:
        A new array, or a view of `sent`.

    Raises:
        RequestError: It is no array of that shape, its dtype is neither uint8 nor float, a float
            leaves the range that can become a level, or it is too narrow to be resized.
    """
    shapes = "(3, h, w)" if channels_first else "(h, w, 3) or (3, h, w)"
    expected = f"expected uint8, or floats in [0, 1], of shape {shapes}"
    if not isinstance(sent, np.ndarray):
        raise RequestError(f"{key!r} is of type {type(sent).__name__}, {expected}.")
    came = f"{key!r} has shape {sent.shape} and dtype {sent.dtype}"
    if sent.dtype != np.uint8 and not np.issubdtype(sent.dtype, np.floating):
        raise RequestError(f"{came}, {expected}.")
    image = _channels_last(sent, channels_first=channels_first)
    if image is None or 0 in image.shape:
        raise RequestError(f"{came}, {expected}.")
    short, long = sorted(image.shape[:2])
    if short * IMAGE_SIZE < long:
        raise RequestError(f"{came}, too narrow to be resized to {IMAGE_SIZE}x{IMAGE_SIZE} pixels.")
    if image.dtype != np.uint8 and not _can_become_levels(image):
        raise RequestError(f"{key!r} is {sent.dtype} and holds numbers outside [0, 1], {expected}.")
    return np.ascontiguousarray(to_uint8(image))


def _channels_last(
    sent: Shaped[np.ndarray, "..."], *, channels_first: bool
) -> Shaped[np.ndarray, "h w 3"] | None:
    if sent.ndim != 3:
        return None
    if sent.shape[0] == 3:
        return np.moveaxis(sent, 0, -1)
    return None if channels_first or sent.shape[-1] != 3 else sent


def _can_become_levels(image: Float[np.ndarray, "h w 3"]) -> bool:
    """Whether truncating 255 x gives 0 to 255; beyond that, openpi's conversion wraps around."""
    levels = 255 * image
    return bool(((levels > -1) & (levels < 256)).all())
