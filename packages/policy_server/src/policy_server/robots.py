"""The robots as tables: what a request holds, where it goes in the model, what an action means.

Sources: openpi src/openpi/policies/{droid,libero,aloha}_policy.py (15a9616); for panda_omron the
evaluator and policy of RoboCasa's fork, robocasa-benchmark/openpi.
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64

from policy_server.transforms import aloha_actions_from_pi, aloha_state_to_pi, make_mask

RobotName = Literal["panda_omron", "libero", "droid", "aloha"]

Layout = tuple[tuple[str, int], ...]
"""(part, width) in the order of the flat vector."""

IMAGE_SLOTS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
"""The model's images, in its order; a slot without a camera is black and masked out."""


@dataclasses.dataclass(frozen=True)
class Camera:
    """One image of a request.

    Attributes:
        key: Its name in the request.
        slot: The model's image that it becomes.
        required: Whether a request without it is refused, or served with the slot masked out.
    """

    key: str
    slot: str
    required: bool = True


@dataclasses.dataclass(frozen=True)
class StateInput:
    """One state vector of a request.

    Attributes:
        key: Its name in the request.
        layout: Its parts, in order.
    """

    key: str
    layout: Layout


@dataclasses.dataclass(frozen=True)
class RobotSpec:
    """Everything that the request path needs to know about a robot.

    Attributes:
        name: Its name in the table of arms.
        cameras: The images of a request.
        state_inputs: The state vectors of a request; joined in order they are the state.
        action_layout: The parts of one action of the reply.
        images_key: The request's map that holds the images; None if they are keys of the request.
        ignored_cameras: Images that are accepted and not used.
        channels_first: Whether images must be (3, h, w).
        prompt_may_be_bytes: Whether the prompt may be UTF-8 bytes.
        delta_mask: Dimensions of the model's actions that are relative to the state; None if all
            are absolute already.
        state_to_model: Turns the request's state into the units that the model was trained with.
        actions_from_model: Turns the model's actions into the robot's units.
    """

    name: str
    cameras: tuple[Camera, ...]
    state_inputs: tuple[StateInput, ...]
    action_layout: Layout
    images_key: str | None = None
    ignored_cameras: tuple[str, ...] = ()
    channels_first: bool = False
    prompt_may_be_bytes: bool = False
    delta_mask: tuple[bool, ...] | None = None
    state_to_model: Callable[[Float64[np.ndarray, " d"]], Float64[np.ndarray, " d"]] | None = None
    actions_from_model: (
        Callable[[Float64[np.ndarray, "h w"]], Float64[np.ndarray, "h w"]] | None
    ) = None

    @property
    def state_layout(self) -> Layout:
        """The parts of the whole state, in order."""
        return tuple(part for state in self.state_inputs for part in state.layout)

    @property
    def state_width(self) -> int:
        """Numbers in the state."""
        return layout_width(self.state_layout)

    @property
    def action_width(self) -> int:
        """Numbers in one action."""
        return layout_width(self.action_layout)

    def describe(self) -> dict[str, Any]:
        """The table as plain msgpack types, for the server's announcement."""
        return {
            "name": self.name,
            "state_layout": [list(part) for part in self.state_layout],
            "action_layout": [list(part) for part in self.action_layout],
            "image_keys": [self.image_path(camera.key) for camera in self.cameras],
            "optional_image_keys": [
                self.image_path(camera.key) for camera in self.cameras if not camera.required
            ],
            "image_slots": {self.image_path(camera.key): camera.slot for camera in self.cameras},
            "channels_first": self.channels_first,
            "state_keys": [[state.key, layout_width(state.layout)] for state in self.state_inputs],
            "delta_mask": None if self.delta_mask is None else list(self.delta_mask),
            "units": "robot" if self.state_to_model is None else self.state_to_model.__name__,
        }

    def image_path(self, key: str) -> str:
        """A camera's name with the map that it lies in, for people."""
        return key if self.images_key is None else f"{self.images_key}/{key}"


def layout_width(layout: Layout) -> int:
    """How many numbers a flat vector of this layout holds."""
    return sum(width for _, width in layout)


PANDA_OMRON = RobotSpec(
    name="panda_omron",
    cameras=(
        Camera("observation/image", "base_0_rgb"),  # robot0_agentview_left
        Camera("observation/wrist_image", "left_wrist_0_rgb"),  # robot0_eye_in_hand
        Camera("observation/right_image", "right_wrist_0_rgb"),  # robot0_agentview_right
    ),
    state_inputs=(
        StateInput(
            "observation/state",
            (  # the policy's order; the dataset's is another one
                ("end_effector_position_relative", 3),  # m, in the base's frame
                ("end_effector_rotation_relative", 4),  # quaternion xyzw, in the base's frame
                ("base_position", 3),  # m, in the world's frame
                ("base_rotation", 4),  # quaternion xyzw, in the world's frame
                ("gripper_qpos", 2),  # finger joints, m
            ),
        ),
    ),
    action_layout=(  # robocasa utils/env_utils.py, convert_action (be22d659)
        ("end_effector_position", 3),  # controller delta, [-1, 1]
        ("end_effector_rotation", 3),  # axis-angle delta, [-1, 1]
        ("gripper_close", 1),  # below 0.5 opens
        ("base_motion", 4),  # x, y, yaw, torso, [-1, 1]
        ("control_mode", 1),  # below 0.5 the manipulator moves, above it the base
    ),
)

LIBERO = RobotSpec(
    name="libero",
    cameras=(
        Camera("observation/image", "base_0_rgb"),
        Camera("observation/wrist_image", "left_wrist_0_rgb"),
    ),
    state_inputs=(
        StateInput(
            "observation/state",
            (
                ("end_effector_position", 3),  # m
                ("end_effector_rotation", 3),  # axis-angle, rad
                ("gripper_qpos", 2),  # finger joints, m
            ),
        ),
    ),
    action_layout=(
        ("end_effector_position", 3),  # controller delta, [-1, 1]
        ("end_effector_rotation", 3),  # axis-angle delta, [-1, 1]
        ("gripper", 1),  # -1 opens, 1 closes
    ),
)

DROID = RobotSpec(
    name="droid",
    cameras=(
        Camera("observation/exterior_image_1_left", "base_0_rgb"),
        Camera("observation/wrist_image_left", "left_wrist_0_rgb"),
    ),
    state_inputs=(
        StateInput("observation/joint_position", (("joint_position", 7),)),  # rad
        StateInput("observation/gripper_position", (("gripper_position", 1),)),  # 0 open, 1 closed
    ),
    action_layout=(
        ("joint_velocity", 7),
        ("gripper_position", 1),  # 0 open, 1 closed
    ),
    prompt_may_be_bytes=True,
)

_ALOHA_PARTS = (
    ("left_joints", 6),  # rad
    ("left_gripper", 1),  # 0 closed, 1 open
    ("right_joints", 6),
    ("right_gripper", 1),
)

ALOHA = RobotSpec(
    name="aloha",
    cameras=(
        Camera("cam_high", "base_0_rgb"),
        Camera("cam_left_wrist", "left_wrist_0_rgb", required=False),
        Camera("cam_right_wrist", "right_wrist_0_rgb", required=False),
    ),
    state_inputs=(StateInput("state", _ALOHA_PARTS),),
    action_layout=_ALOHA_PARTS,
    images_key="images",
    ignored_cameras=("cam_low",),
    channels_first=True,
    delta_mask=make_mask(6, -1, 6, -1),
    state_to_model=aloha_state_to_pi,
    actions_from_model=aloha_actions_from_pi,
)

ROBOTS: Mapping[str, RobotSpec] = MappingProxyType(
    {robot.name: robot for robot in (PANDA_OMRON, LIBERO, DROID, ALOHA)}
)
"""Every robot by its name in the table of arms."""
