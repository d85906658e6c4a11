import numpy as np
import pytest

from sim_client.errors import PolicyError, SimError
from sim_client.robots import (
    PANDA_OMRON_ACTION,
    PANDA_OMRON_STATE,
    join_state,
    layout_width,
    split_action,
)

ACTION_PARTS = [
    ("end_effector_position", [0, 1, 2]),
    ("end_effector_rotation", [3, 4, 5]),
    ("gripper_close", [6]),
    ("base_motion", [7, 8, 9, 10]),
    ("control_mode", [11]),
]


def state_parts():
    return {
        "gripper_qpos": np.array([14.0, 15.0]),
        "base_rotation": np.array([10.0, 11.0, 12.0, 13.0]),
        "base_position": np.array([7.0, 8.0, 9.0]),
        "end_effector_rotation_relative": np.array([3.0, 4.0, 5.0, 6.0]),
        "end_effector_position_relative": np.array([0.0, 1.0, 2.0]),
    }


def test_the_robot_has_16_state_and_12_action_numbers():
    assert (layout_width(PANDA_OMRON_STATE), layout_width(PANDA_OMRON_ACTION)) == (16, 12)


def test_the_state_follows_the_layout_and_not_the_order_of_the_parts():
    state = join_state(state_parts(), PANDA_OMRON_STATE)
    assert state.dtype == np.float32
    assert state.tolist() == list(range(16))


def test_an_action_is_cut_into_the_wrappers_parts():
    parts = split_action(np.arange(12.0), PANDA_OMRON_ACTION)
    assert [(name, part.tolist()) for name, part in parts.items()] == ACTION_PARTS


def test_cutting_an_action_copies_it():
    action = np.arange(12.0)
    split_action(action, PANDA_OMRON_ACTION)["end_effector_position"][0] = 99.0
    assert action[0] == 0.0


@pytest.mark.parametrize(
    "edit",
    [
        lambda parts: parts.pop("gripper_qpos"),
        lambda parts: parts.update(torso=np.zeros(1)),
        lambda parts: parts.update(gripper_qpos=np.zeros(1)),
    ],
    ids=["missing", "extra", "narrow"],
)
def test_a_state_that_does_not_fit_the_layout_is_refused(edit):
    parts = state_parts()
    edit(parts)
    with pytest.raises(SimError, match=r"sim_client/robots\.py"):
        join_state(parts, PANDA_OMRON_STATE)


@pytest.mark.parametrize("width", [11, 13, 32])
def test_an_action_of_another_width_is_refused_and_not_sliced(width):
    with pytest.raises(PolicyError, match="expected one action of 12 numbers"):
        split_action(np.zeros(width), PANDA_OMRON_ACTION)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_action_that_is_not_finite_is_refused(bad):
    action = np.zeros(12)
    action[4] = bad
    with pytest.raises(PolicyError, match="finite"):
        split_action(action, PANDA_OMRON_ACTION)
