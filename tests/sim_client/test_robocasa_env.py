"""The real RoboCasa behind the adapter; needs the environment of ./eval.sh install robocasa."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from robocasa_rollout import TASK, action, require_robocasa, rollout
from robosuite_rollout import seeded_actions

from sim_client.envs.base import SimEnv
from sim_client.envs.robocasa import RobocasaEnv
from sim_client.envs.robocasa_setup import object_models
from sim_client.errors import ConfigError, PolicyError, SimError
from sim_client.robots import PANDA_OMRON_ACTION, PANDA_OMRON_STATE

require_robocasa()
pytestmark = pytest.mark.robocasa
SCRIPT = Path(__file__).with_name("robocasa_rollout.py")


@pytest.fixture(scope="module")
def env():
    built = RobocasaEnv(TASK)
    yield built
    built.close()


def state_parts(env):
    ends = np.cumsum([width for _, width in PANDA_OMRON_STATE])
    values = np.split(env.observe().state, ends[:-1])
    return {name: value for (name, _), value in zip(PANDA_OMRON_STATE, values, strict=True)}


# --- an episode is a function of its id ---------------------------------------------------------


def test_an_episode_does_not_depend_on_the_episodes_before_it(env):
    first = rollout(env, 0)
    other = rollout(env, 1)
    assert rollout(env, 0) == first
    assert other["scene"] != first["scene"]
    assert other["start"] != first["start"]


def test_a_cold_process_plays_the_same_episode_silently_and_leaves_no_file(env, tmp_path):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "0"],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    (episode,) = map(json.loads, done.stdout.splitlines())
    assert episode == rollout(env, 0)
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


# --- layouts, by what moves ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "first"),
    [
        ("end_effector_position", 0),
        ("end_effector_rotation", 3),
        ("gripper_close", 6),
        ("base_motion", 7),
        ("control_mode", 11),
    ],
)
def test_each_part_reaches_the_controller_of_its_name(env, monkeypatch, part, first):
    """First index of the part in robosuite's vector for this robot, measured with the stock one."""
    env.reset(0)
    received = []

    def capture(vector):
        received.append(vector)
        raise SimError("far enough")

    monkeypatch.setattr(env._env, "step", capture)
    for each in (action(), action(**{part: 1.0})):
        with pytest.raises(SimError, match="far enough"):
            env.step(each)
    width = dict(PANDA_OMRON_ACTION)[part]
    assert np.flatnonzero(received[0] != received[1]).tolist() == [
        *range(first, first + width),
    ]


def test_the_hand_and_the_base_move_as_named(env):
    env.reset(0)
    before = state_parts(env)
    for _ in range(6):
        env.step(action(end_effector_position=[0, 0, 1]))
    raised = state_parts(env)
    hand = raised["end_effector_position_relative"] - before["end_effector_position_relative"]
    assert hand[2] > 0.05 > np.abs(hand[:2]).max()
    assert np.abs(raised["base_position"] - before["base_position"]).max() < 0.02
    for _ in range(6):
        env.step(action(base_motion=[-1, 0, 0, 0], control_mode=1))
    moved = state_parts(env)["base_position"] - raised["base_position"]
    assert np.linalg.norm(moved[:2]) > 0.03


# --- success and stages -------------------------------------------------------------------------


def put_object_at(env, position_m):
    joint = env._env.objects["obj"].joints[0]
    pose = env._env.sim.data.get_joint_qpos(joint)
    env._env.sim.data.set_joint_qpos(joint, np.concatenate([position_m, pose[3:]]))
    env._env.sim.data.set_joint_qvel(joint, np.zeros(6))
    env._env.sim.forward()


def middle_of_the_cabinet(env):
    """The centre of the largest interior region, lowered towards its floor by a quarter."""
    regions = env._env.cab.get_int_sites(relative=False).values()
    origin, along_x, along_y, along_z = max(
        regions, key=lambda sites: np.prod([np.linalg.norm(s - sites[0]) for s in sites[1:]])
    )
    return origin + (along_x - origin) / 2 + (along_y - origin) / 2 + 0.35 * (along_z - origin)


def test_an_object_in_the_cabinet_with_the_hand_far_off_is_success_at_that_step(env):
    env.reset(2)
    result = env.step(action())
    assert (result.success, result.reward, result.terminated) == (False, 0.0, False)
    assert env.stages() == {"grasped": False, "lifted": False, "in_cabinet": False}
    put_object_at(env, middle_of_the_cabinet(env))
    result = env.step(action())
    assert env.stages()["in_cabinet"]
    assert (result.success, result.reward, result.terminated) == (True, 1.0, False)


def test_lifted_is_four_centimetres_above_where_the_object_stood(env):
    env.reset(2)
    start = np.array(env.scene()["objects"]["obj"]["position_m"])
    put_object_at(env, start + np.array([0, 0, 0.03]))
    assert not env.stages()["lifted"]
    put_object_at(env, start + np.array([0, 0, 0.05]))
    assert env.stages()["lifted"]
    assert env.scene()["objects"]["obj"]["position_m"] == start.tolist()


def test_asking_for_stages_changes_nothing(env):
    env.reset(0)
    env.step(action())
    before, generator = env.physics_state(), env._env.rng.bit_generator.state
    env.stages()
    np.testing.assert_array_equal(env.physics_state(), before)
    assert env._env.rng.bit_generator.state == generator


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("width", [7, 11, 13])
def test_an_action_of_another_width_is_refused(env, width):
    with pytest.raises(PolicyError, match="one action of 12 numbers"):
        env.step(np.zeros(width))


@pytest.mark.parametrize("value", [np.nan, 1e12])
def test_a_broken_simulation_is_a_sim_error_and_the_next_episode_is_not_touched(
    env, value, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    expected = rollout(env, 1)
    env.reset(0)
    env._env.sim.data.qvel[-1] = value
    with pytest.raises(SimError):
        env.step(action())
    assert rollout(env, 1) == expected
    assert list(tmp_path.iterdir()) == []


def test_a_scene_that_breaks_while_it_settles_is_a_sim_error(env, monkeypatch):
    mujoco: Any = importlib.import_module("mujoco")
    reset = env._gym.reset

    def reset_with_a_warning(**kwargs):
        result = reset(**kwargs)
        env._env.sim.data.warning[mujoco.mjtWarning.mjWARN_BADQACC].number = 1
        return result

    monkeypatch.setattr(env._gym, "reset", reset_with_a_warning)
    with pytest.raises(SimError, match="episode 1's scene broke while its objects settled"):
        env.reset(1)


def set_models(monkeypatch, choose):
    """Replace every category's models, as another asset folder would."""
    objects = importlib.import_module("robocasa.models.objects.kitchen_object_utils")
    for by_registry in objects.OBJ_CATEGORIES.values():
        for models in by_registry.values():
            monkeypatch.setattr(models, "mjcf_paths", choose(models.mjcf_paths))


def test_an_empty_object_registry_is_an_incomplete_download(env, monkeypatch):
    set_models(monkeypatch, lambda paths: [])
    with pytest.raises(ConfigError, match=r"assets are incomplete.*eval\.sh install robocasa"):
        env.reset(0)


def test_a_missing_model_is_an_incomplete_download(env, monkeypatch):
    set_models(monkeypatch, lambda paths: [path.replace("model", "none") for path in paths])
    with pytest.raises(ConfigError, match=r"assets are incomplete.*none\.xml"):
        env.reset(0)


def test_a_read_only_model_folder_is_named(env, monkeypatch):
    def refuse(**_):
        raise PermissionError(13, "Permission denied", "/assets/objects/1_2.xml")

    monkeypatch.setattr(env._gym, "reset", refuse)
    with pytest.raises(ConfigError, match=r"/assets/objects/1_2\.xml.*asset folder writable"):
        env.reset(0)


def test_a_scene_that_cannot_be_made_is_a_sim_error_and_our_own_mistake_is_not(env, monkeypatch):
    def fail_as(error):
        def fail(**_):
            raise error

        monkeypatch.setattr(env._gym, "reset", fail)

    fail_as(RuntimeError("Ran _load_model() 50 times but could not initialize task!"))
    with pytest.raises(SimError, match="episode 3: Ran _load_model"):
        env.reset(3)
    fail_as(RuntimeError("ours"))
    with pytest.raises(RuntimeError, match="ours"):
        env.reset(3)


# --- the rest of the interface ------------------------------------------------------------------


def test_versions_name_what_decides_numbers_and_pixels(env, monkeypatch):
    env.reset(0)
    versions = env.versions()
    assert versions["robocasa"].startswith("1.0.1 (")
    assert versions["robosuite"].startswith("1.5.2 (")
    assert versions["mujoco"] == "3.3.1"
    assert versions["gl_renderer"]
    assert versions["robocasa_objects"] == object_models()
    set_models(monkeypatch, lambda paths: paths[:-1])
    assert versions["robocasa_objects"] != object_models()


def test_the_scene_is_the_environments_and_stays_the_initial_one(env):
    env.reset(1)
    start = json.loads(json.dumps(env.scene()))
    assert start == env.scene()
    assert (start["layout"], start["style"]) == (env._env.layout_id, env._env.style_id)
    assert start["layout"] in range(1, 11), "target has ten kitchens"
    for each in 0.5 * seeded_actions(3):
        env.step(each)
    assert env.scene() == start


def test_the_adapter_is_a_sim_env(env):
    as_interface: SimEnv = env
    assert isinstance(env, SimEnv)
    assert (as_interface.task, as_interface.max_steps, as_interface.control_hz) == (TASK, 750, 20.0)


@pytest.mark.slow
def test_a_pretrain_scene_and_a_task_about_a_fixture_run():
    other = RobocasaEnv("TurnOnMicrowave", split="pretrain", camera_size=64, max_steps=3)
    try:
        other.reset(0)
        assert other.scene()["layout"] in range(11, 61)
        assert other.stages() == {}
        assert other.observe().prompt == "Press the start button on the microwave."
        assert other.max_steps == 3
        other.step(action())
        assert other.video_frame().shape == (64, 64, 3)
    finally:
        other.close()
        other.close()
