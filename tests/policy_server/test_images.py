"""Images: openpi's bytes, and what is refused before they are made."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from golden_data import COMPACT, golden_roots
from policy_server.errors import RequestError
from policy_server.images import parse_image, resize_with_pad, to_uint8

SIZES = ("256x256", "480x640", "180x320", "224x224", "100x50", "257x225")
EXPECTED = r"expected uint8, or floats in \[0, 1\], of shape"


def recorded_sizes() -> Iterator:
    for root in golden_roots():
        for size in SIZES:
            yield pytest.param(root, size, id=f"{'compact' if root == COMPACT else 'full'}-{size}")


@pytest.mark.parametrize(("root", "size"), list(recorded_sizes()))
def test_a_resized_image_has_openpis_bytes(root: Path, size: str):
    with np.load(root / "resize_with_pad.npz") as file:
        if root == COMPACT and f"{size}/in" not in file.files:
            pytest.skip("not in the committed selection")
        image, expected = file[f"{size}/in"], file[f"{size}/client_pil"]
    image.flags.writeable = False

    np.testing.assert_array_equal(resize_with_pad(image), expected, strict=True)


@pytest.mark.parametrize("root", golden_roots(), ids=str)
def test_floats_become_openpis_levels(root: Path):
    with np.load(root / "convert_to_uint8.npz") as file:
        floats, levels = file["x"], file["y"]

    np.testing.assert_array_equal(to_uint8(floats), levels, strict=True)
    parsed = parse_image("image", np.tile(floats, (2, 2, 1)), channels_first=False)
    np.testing.assert_array_equal(parsed, np.tile(levels, (2, 2, 1)), strict=True)


def test_channels_may_come_first_or_last():
    last = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    first = np.ascontiguousarray(np.moveaxis(last, -1, 0))

    np.testing.assert_array_equal(parse_image("image", last, channels_first=False), last)
    np.testing.assert_array_equal(parse_image("image", first, channels_first=False), last)
    np.testing.assert_array_equal(parse_image("image", first, channels_first=True), last)


def test_channels_last_are_refused_where_they_must_come_first():
    with pytest.raises(RequestError, match=r"shape \(4, 5, 3\) .* of shape \(3, h, w\)\."):
        parse_image("cam", np.zeros((4, 5, 3), np.uint8), channels_first=True)


@pytest.mark.parametrize(
    "sent",
    [
        np.zeros((4, 5), np.uint8),
        np.zeros((1, 4, 5, 3), np.uint8),
        np.zeros((4, 5, 4), np.uint8),
        np.zeros((4, 0, 3), np.uint8),
        np.zeros((4, 5, 3), np.int64),
        np.zeros((4, 5, 3), np.bool_),
        np.array("image"),
        np.uint8(3),
        [[[0, 0, 0]]],
        "image",
        None,
    ],
)
def test_anything_but_an_image_is_refused_with_what_came_and_what_is_expected(sent: object):
    came = "has shape .* and dtype" if isinstance(sent, np.ndarray) else "is of type"
    with pytest.raises(RequestError, match=f"^'obs/image' {came} .*{EXPECTED}"):
        parse_image("obs/image", sent, channels_first=False)


@pytest.mark.parametrize("value", [-1.0, 1.01, 255.0, np.nan, np.inf])
def test_floats_that_would_wrap_around_are_refused(value: float):
    image = np.zeros((4, 5, 3), np.float32)
    image[3, 4, 2] = value
    with pytest.raises(RequestError, match=rf"float32 and holds numbers outside .*{EXPECTED}"):
        parse_image("image", image, channels_first=False)


@pytest.mark.parametrize("shape", [(1, 225, 3), (1000, 4, 3)])
def test_an_image_that_would_shrink_to_nothing_is_refused(shape: tuple[int, ...]):
    with pytest.raises(RequestError, match="too narrow"):
        parse_image("image", np.zeros(shape, np.uint8), channels_first=False)


@pytest.mark.parametrize("shape", [(1, 224, 3), (1, 1, 3), (900, 5, 3)])
def test_a_narrow_image_that_passes_can_be_resized(shape: tuple[int, ...]):
    image = parse_image("image", np.full(shape, 255, np.uint8), channels_first=False)
    assert resize_with_pad(image).any()
