"""The robots' state and action layouts: tables of (part, width), never slices."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Float32

from sim_client.errors import PolicyError, SimError

Layout = tuple[tuple[str, int], ...]

# The order pi0.5 was trained with on RoboCasa (the evaluator of robocasa-benchmark/openpi). The
# dataset's own order is another one.
PANDA_OMRON_STATE: Layout = (
    ("end_effector_position_relative", 3),  # m, in the base's frame
    ("end_effector_rotation_relative", 4),  # quaternion xyzw, in the base's frame
    ("base_position", 3),  # m, in the world's frame
    ("base_rotation", 4),  # quaternion xyzw, in the world's frame
    ("gripper_qpos", 2),  # finger joints, m
)
PANDA_OMRON_ACTION: Layout = (  # robocasa utils/env_utils.py, convert_action (be22d659)
    ("end_effector_position", 3),  # controller delta in the base's frame, [-1, 1] is +-5 cm
    ("end_effector_rotation", 3),  # axis-angle delta, [-1, 1] is +-0.5 rad
    ("gripper_close", 1),  # below 0.5 opens
    ("base_motion", 4),  # x, y, yaw, torso, [-1, 1]
    ("control_mode", 1),  # below 0.5 the limb moves, above it the base
)
LIBERO_STATE: Layout = (  # openpi examples/libero/main.py (15a9616)
    ("end_effector_position", 3),  # m, in the world's frame
    ("end_effector_rotation", 3),  # axis-angle, rad
    ("gripper_qpos", 2),  # finger joints, m
)
LIBERO_ACTION: Layout = (
    ("end_effector_position", 3),  # controller delta, [-1, 1] is +-5 cm
    ("end_effector_rotation", 3),  # axis-angle delta, [-1, 1] is +-0.5 rad
    ("gripper", 1),  # -1 opens, 1 closes
)


def layout_width(layout: Layout) -> int:
    """How many numbers a flat vector of this layout holds."""
    return sum(width for _, width in layout)


def join_state(
    parts: Mapping[str, Float[np.ndarray, " _"]], layout: Layout
) -> Float32[np.ndarray, " d"]:
    """Put the named parts into one flat state, in the layout's order.

    Args:
        parts: One array per part of `layout`, each of its width, in any order.
        layout: The parts in the order the policy was trained with.

    Returns:
        The state, float32 as RoboCasa's wrapper gives it, shape (layout_width(layout),).

    Raises:
        SimError: A part is missing, unknown or of another shape.
    """
    names = [name for name, _ in layout]
    if set(parts) != set(names):
        raise SimError(
            f"the simulator gave the state parts {sorted(parts)} where the robot's layout "
            f"(sim_client/robots.py) has {sorted(names)}."
        )
    for name, width in layout:
        if parts[name].shape != (width,):
            raise SimError(
                f"the simulator gave state part {name!r} with shape {parts[name].shape} where the "
                f"robot's layout (sim_client/robots.py) has ({width},)."
            )
    return np.concatenate([parts[name] for name in names]).astype(np.float32)


def split_action(
    action: Float[np.ndarray, " d"], layout: Layout
) -> dict[str, Float[np.ndarray, " _"]]:
    """Cut one flat action into its named parts, in the layout's order.

    Args:
        action: One action of a policy, shape (layout_width(layout),).
        layout: The parts in the order the policy was trained with.

    Returns:
        A new array per part, with the numbers and dtype of `action`.

    Raises:
        PolicyError: `action` has another shape or holds a number that is not finite.
    """
    width = layout_width(layout)
    if action.shape != (width,):
        raise PolicyError(
            f"expected one action of {width} numbers ({', '.join(name for name, _ in layout)}), "
            f"got shape {action.shape}."
        )
    if not np.isfinite(action).all():
        raise PolicyError(f"expected an action of finite numbers, got {action.tolist()}.")
    ends = np.cumsum([width for _, width in layout])
    return {
        name: action[end - width : end].copy()
        for (name, width), end in zip(layout, ends, strict=True)
    }
