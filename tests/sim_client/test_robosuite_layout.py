import numpy as np
import pytest
from robosuite_rollout import action, state_parts
from scipy.spatial.transform import Rotation


def change(env, steady, n_steps=10):
    """How much each part of the state moves while one action is held.

    One idle step comes first: robosuite 1.5.2 starts its arm controller with a goal in the wrong
    frame, which shows when the very first action is in base mode.
    """
    env.reset(0)
    env.step(action())
    before = state_parts(env)
    for _ in range(n_steps):
        env.step(steady)
    after = state_parts(env)
    return {name: after[name] - before[name] for name in before}


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_end_effector_position_moves_the_hand_along_its_axis(env, axis):
    moved = change(env, action(end_effector_position=np.eye(3)[axis]))
    hand = moved["end_effector_position_relative"]
    assert hand[axis] > 0.08
    assert np.abs(np.delete(hand, axis)).max() < 0.03
    assert np.abs(moved["base_position"]).max() < 0.01


def test_end_effector_rotation_turns_the_hand_and_not_the_base(env):
    moved = change(env, action(end_effector_rotation=[0, 0, 1]))
    assert np.abs(moved["end_effector_rotation_relative"]).max() > 0.2
    assert np.abs(moved["base_rotation"]).max() < 0.01


@pytest.mark.parametrize(
    ("value", "closes"), [(0.0, False), (0.49, False), (0.5, True), (1.0, True)]
)
def test_gripper_close_opens_below_a_half_and_closes_from_there(env, value, closes):
    env.reset(0)
    for _ in range(10):
        env.step(action(gripper_close=value))
    opening = state_parts(env)["gripper_qpos"][0]
    assert (opening < 0.005) == closes
    assert (opening > 0.035) == (not closes)


@pytest.mark.parametrize("mode", [0.0, 1.0])
@pytest.mark.parametrize(
    ("base_motion", "part", "index"),
    [
        ([1, 0, 0, 0], "base_position", 0),
        ([0, 1, 0, 0], "base_position", 1),
        ([0, 0, 1, 0], "base_rotation", 2),
        ([0, 0, 0, 1], "base_position", 2),
    ],
    ids=["x", "y", "yaw", "torso"],
)
def test_base_motion_moves_the_base_along_its_part(env, base_motion, part, index, mode):
    moved = change(env, action(base_motion=base_motion, control_mode=mode))
    assert moved[part][index] > 0.08
    largest = {name: np.abs(moved[name]).argmax() for name in ("base_position", "base_rotation")}
    assert largest[part] == index


def test_control_mode_decides_what_the_hands_deltas_add_to(env):
    """Base mode adds each delta to the goal, arm mode to the place reached, which lags behind."""
    push = action(end_effector_position=[0.2, 0, 0])
    in_arm_mode = change(env, push)["end_effector_position_relative"][0]
    push_in_base_mode = action(end_effector_position=[0.2, 0, 0], control_mode=1)
    in_base_mode = change(env, push_in_base_mode)["end_effector_position_relative"][0]
    assert in_base_mode > in_arm_mode + 0.02


def test_the_state_composes_to_the_hands_place_in_the_world(env):
    env.reset(0)
    env.step(action())
    for _ in range(8):
        env.step(action(base_motion=[1, 0.5, 1, 0.3], control_mode=1))
    parts = state_parts(env)
    base = Rotation.from_quat(parts["base_rotation"])  # scipy takes xyzw
    hand = base.apply(parts["end_effector_position_relative"]) + parts["base_position"]
    turn = base * Rotation.from_quat(parts["end_effector_rotation_relative"])
    data = env._env.sim.data
    assert abs(parts["base_rotation"][2]) > 0.1, "the base has turned, or this shows nothing"
    np.testing.assert_allclose(hand, data.get_site_xpos("gripper0_right_grip_site"), atol=1e-5)
    np.testing.assert_allclose(turn.as_matrix(), data.get_body_xmat("robot0_right_hand"), atol=1e-5)
