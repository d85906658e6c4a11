"""What happens to states and actions besides normalisation: padding, delta actions, ALOHA's units.

All are functions of their arguments; none changes an input, which may be a view of a frame.
"""

import numpy as np
from jaxtyping import Bool, Float, Float64

# ALOHA's signs and ranges; openpi src/openpi/policies/aloha_policy.py (15a9616).
_ALOHA_SIGNS = np.array([1.0, -1, -1, 1, 1, 1, 1, 1, -1, -1, 1, 1, 1, 1])
_ALOHA_GRIPPERS = [6, 13]
_FINGER_TRAVEL_M = (0.01844, 0.05800)  # closed and open, of the follower
_ARM_LENGTH_M = 0.036  # of the gripper's crank, as in Interbotix' driver
_HORN_RADIUS_M = 0.022
_PI_GRIPPER_RAD = (0.5476, 1.6296)  # encoder counts 2405 and 3110 of 4096, zero at 2048
_FOLLOWER_JOINT_RAD = (-0.6213, 1.4910)  # closed and open


def pad_to_width(x: Float[np.ndarray, "*b d"], width: int) -> Float[np.ndarray, "*b w"]:
    """Append zeros to the last axis; an array that is as wide or wider comes back as it is.

    Source:
        openpi src/openpi/transforms.py, pad_to_dim (15a9616).
    """
    missing = width - x.shape[-1]
    if missing <= 0:
        return x
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, missing)])


def make_mask(*runs: int) -> tuple[bool, ...]:
    """Spell a mask by the lengths of its runs: positive is True, negative is False.

    Source:
        openpi src/openpi/transforms.py, make_bool_mask (15a9616).
    """
    return tuple(run > 0 for run in runs for _ in range(abs(run)))


def to_absolute(
    deltas: Float[np.ndarray, "h d"], state: Float[np.ndarray, " d"], mask: Bool[np.ndarray, " d"]
) -> Float[np.ndarray, "h d"]:
    """Add the state to the masked dimensions of a chunk of deltas.

    Args:
        deltas: Actions in the robot's units, relative to `state` where `mask` is True.
        state: State of the request in the same units.
        mask: Which dimensions are relative.

    Source:
        openpi src/openpi/transforms.py, AbsoluteActions (15a9616).
    """
    return deltas + np.where(mask, state, 0.0)


def aloha_state_to_pi(state: Float64[np.ndarray, " 14"]) -> Float64[np.ndarray, " 14"]:
    """Turn ALOHA's joints and grippers into those of the runtime that the model was trained with.

    The gripper's opening (0 to 1 of the finger's travel) becomes the angle of its motor, 0 to 1 of
    the range that the model knows.

    Args:
        state: Per arm six joints in rad and the gripper's opening.

    Source:
        openpi src/openpi/policies/aloha_policy.py, _decode_state (15a9616).
    """
    adapted = _ALOHA_SIGNS * state
    closed, opened = _FINGER_TRAVEL_M
    travel = adapted[_ALOHA_GRIPPERS] * (opened - closed) + closed
    sine = (_HORN_RADIUS_M**2 + travel**2 - _ARM_LENGTH_M**2) / (2 * _HORN_RADIUS_M * travel)
    angle = np.arcsin(np.clip(sine, -1.0, 1.0))
    low, high = _PI_GRIPPER_RAD
    adapted[_ALOHA_GRIPPERS] = (angle - low) / (high - low)
    return adapted


def aloha_actions_from_pi(
    actions: Float64[np.ndarray, "h 14"],
) -> Float64[np.ndarray, "h 14"]:
    """Turn the model's joints and grippers into ALOHA's.

    The model gives a gripper's angle in rad above the start of the range that it knows; ALOHA takes
    0 to 1 of the range of its joint. This is not the inverse of `aloha_state_to_pi`: states and
    actions of a gripper have different units on this robot.

    Source:
        openpi src/openpi/policies/aloha_policy.py, _encode_actions (15a9616).
    """
    adapted = _ALOHA_SIGNS * actions
    angle = adapted[:, _ALOHA_GRIPPERS] + _PI_GRIPPER_RAD[0]
    closed, opened = _FOLLOWER_JOINT_RAD
    adapted[:, _ALOHA_GRIPPERS] = (angle - closed) / (opened - closed)
    return adapted
