"""CounterToCabinet's scene as numbers: what stands where, and what being in the cabinet means.

All of a scene is drawn here from the environment's generator, before a model is built of it. World
frame: x from the robot to the back of the counter, y to its left, z up, metres.
"""

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from jaxtyping import Float

OBJECTS: Mapping[str, str] = MappingProxyType(  # name -> class of robosuite.models.objects
    {
        "milk": "MilkObject",
        "bread": "BreadObject",
        "cereal": "CerealObject",
        "can": "CanObject",
        "lemon": "LemonObject",
    }
)
MAX_DISTRACTORS = 2

COUNTER_TOP_Z_M = 0.8
COUNTER_SIZE_M = (0.8, 1.2, 0.05)
SLOTS_Y_M = (-0.27, -0.09, 0.09, 0.27)  # far enough apart for fingers between two objects
SLOT_JITTER_Y_M = 0.025
OBJECTS_X_M = (-0.2, -0.08)

CABINET_BODY = "cabinet"
CABINET_X_M = (0.20, 0.23)
CABINET_Y_M = (-0.08, 0.08)
INTERIOR_HALF_M = (0.14, 0.21, 0.21)
BOARD_HALF_M = 0.01
BOARD_RGBA = "0.5 0.33 0.18 1"
INSIDE_SLACK_M = 0.005  # resting contact sinks into the floor; the boards are 20 mm thick


@dataclass(frozen=True)
class Placement:
    """One object upright on the counter."""

    name: str
    xy_m: tuple[float, float]
    yaw_rad: float


@dataclass(frozen=True)
class Scene:
    """What one episode starts with; the first object is the target, the others distract."""

    placements: tuple[Placement, ...]
    interior_center_m: tuple[float, float, float]


def draw_scene(rng: np.random.Generator) -> Scene:
    """Draw the target, up to two distractors, a pose for each, and the cabinet's place."""
    n_objects = 1 + int(rng.integers(MAX_DISTRACTORS + 1))
    names = rng.permutation(tuple(OBJECTS))[:n_objects]
    slots = rng.permutation(len(SLOTS_Y_M))[:n_objects]
    placements = tuple(
        Placement(
            name=str(name),
            xy_m=(
                float(rng.uniform(*OBJECTS_X_M)),
                float(SLOTS_Y_M[slot] + rng.uniform(-SLOT_JITTER_Y_M, SLOT_JITTER_Y_M)),
            ),
            yaw_rad=float(rng.uniform(-np.pi, np.pi)),
        )
        for name, slot in zip(names, slots, strict=True)
    )
    interior_floor_z_m = COUNTER_TOP_Z_M + 2 * BOARD_HALF_M
    center_m = (
        float(rng.uniform(*CABINET_X_M)),
        float(rng.uniform(*CABINET_Y_M)),
        interior_floor_z_m + INTERIOR_HALF_M[2],
    )
    return Scene(placements, center_m)


def cabinet_body(interior_center_m: tuple[float, float, float]) -> ET.Element:
    """A cabinet of five boards, open towards the robot; its frame is the interior's centre."""
    body = ET.Element("body", {"name": CABINET_BODY, "pos": " ".join(map(str, interior_center_m))})
    half_x, half_y, half_z = INTERIOR_HALF_M
    board = BOARD_HALF_M
    boards = {
        "floor": ((0, 0, -half_z - board), (half_x, half_y + 2 * board, board)),
        "ceiling": ((0, 0, half_z + board), (half_x, half_y + 2 * board, board)),
        "left": ((0, half_y + board, 0), (half_x, board, half_z)),
        "right": ((0, -half_y - board, 0), (half_x, board, half_z)),
        "back": ((half_x + board, 0, 0), (board, half_y + 2 * board, half_z + 2 * board)),
    }
    for name, (pos_m, half_size_m) in boards.items():
        attributes = {
            "name": f"{CABINET_BODY}_{name}",
            "type": "box",
            "pos": " ".join(map(str, pos_m)),
            "size": " ".join(map(str, half_size_m)),
            "group": "1",  # robosuite draws this group; the boards collide as well
            "rgba": BOARD_RGBA,
        }
        ET.SubElement(body, "geom", attributes)
    return body


def all_inside(
    points_m: Float[np.ndarray, "n 3"], interior_center_m: tuple[float, float, float]
) -> bool:
    """Whether all points of an object, in the world's frame, are in the cabinet's interior.

    That is to say all corners of the object's bounding box along the cabinet's axes. A box along
    the object's own axes, as RoboCasa takes it, would have corners below the floor under a lemon
    that has rolled; RoboCasa's far larger slack forgives that.
    """
    from_center_m = np.abs(points_m - np.asarray(interior_center_m))
    return bool((from_center_m <= np.asarray(INTERIOR_HALF_M) + INSIDE_SLACK_M).all())
