import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from robosuite_rollout import N_STEPS, action, rollout, seeded_actions, sha256, state_parts

from sim_client.envs.base import SimEnv, StepResult
from sim_client.envs.robosuite import RobosuiteEnv
from sim_client.errors import ConfigError, PolicyError, SimError
from sim_client.gl import backend_in_use, backend_works

SCRIPT = Path(__file__).with_name("robosuite_rollout.py")


def test_an_episode_does_not_depend_on_the_episodes_before_it(env):
    first = rollout(env, 3)
    other = rollout(env, 4)
    assert rollout(env, 3) == first
    assert other["scene"]["position_m"] != first["scene"]["position_m"]
    assert other["scene"]["half_size_m"] != first["scene"]["half_size_m"]
    assert other["start"]["physics"] != first["start"]["physics"]


def in_another_process(*ep_ids, cwd, **environ):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, ep_ids)],
        env={**os.environ, **environ},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_cold_process_plays_the_same_episode_silently_and_leaves_no_file(env, tmp_path):
    (episode,), noise = in_another_process(3, cwd=tmp_path, PYTHONHASHSEED="77")
    assert episode == rollout(env, 3)
    assert noise == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_egl_and_osmesa_in_software_draw_the_same_bits(env, tmp_path):
    other = {"egl": "osmesa", "osmesa": "egl"}[backend_in_use()]
    if "llvmpipe" not in env.versions()["gl_renderer"] or not backend_works(other, os.environ):
        pytest.skip(f"needs llvmpipe under both backends; {other} does not draw here")
    (episode,), _ = in_another_process(
        3, cwd=tmp_path, MUJOCO_GL=other, PYOPENGL_PLATFORM=other, LP_NUM_THREADS="2"
    )
    assert episode == rollout(env, 3)


def test_looking_does_not_change_the_physics(env):
    watched = rollout(env, 5)
    env.reset(5)
    for each in seeded_actions(N_STEPS):
        env.step(each)
        env.observe()
    looked_at_each_step = sha256(env.physics_state())
    env.reset(5)
    for each in seeded_actions(N_STEPS):
        env.step(each)
    assert sha256(env.physics_state()) == looked_at_each_step == watched["end"]["physics"]


def test_the_scene_stays_the_initial_one(env):
    env.reset(2)
    start = json.loads(json.dumps(env.scene()))
    for each in seeded_actions(N_STEPS):
        env.step(each)
    assert env.scene() == start


def reach_and_lift(env):
    """An action of a hand-written expert: above the cube, down, close, up."""
    parts = state_parts(env)
    hand = parts["end_effector_position_relative"] + parts["base_position"]
    cube = env._env.sim.data.get_body_xpos("cube_main")
    gap = cube - hand
    far = np.linalg.norm(gap[:2]) > 0.015
    reached = not far and abs(gap[2]) < 0.012
    if env.stages()["grasped"]:
        target, close = [0, 0, 0.06], 1.0
    else:
        target, close = gap + np.array([0, 0, 0.06 * far]), float(reached)
    return action(
        end_effector_position=np.clip(0.9 * np.asarray(target) / 0.05, -1, 1), gripper_close=close
    )


def test_lifting_the_cube_is_success_at_the_step_it_happens(env):
    env.reset(0)
    assert env.stages() == {"grasped": False, "lifted": False}
    seen = []
    while len(seen) < 80 and not (seen and seen[-1][0].success):
        result = env.step(reach_and_lift(env))
        seen.append((result, env.stages()))
    assert seen[-1] == (
        StepResult(success=True, reward=1.0, terminated=False),
        {"grasped": True, "lifted": True},
    )
    only_grasped = (
        StepResult(success=False, reward=0.0, terminated=False),
        {"grasped": True, "lifted": False},
    )
    assert only_grasped in seen


@pytest.mark.parametrize("width", [7, 11, 13])
def test_an_action_of_another_width_is_refused(env, width):
    env.reset(0)
    with pytest.raises(PolicyError, match="one action of 12 numbers"):
        env.step(np.zeros(width))


def test_an_action_with_nan_is_refused_before_it_moves_anything(env):
    env.reset(0)
    before = env.physics_state()
    with pytest.raises(PolicyError, match="finite"):
        env.step(action(base_motion=[0, 0, 0, np.nan]))
    np.testing.assert_array_equal(env.physics_state(), before)


def test_an_unknown_task_names_the_nearest_and_the_flag():
    with pytest.raises(ConfigError, match=r"--args\.env_names 'lift'.* Did you mean 'Lift'\?"):
        RobosuiteEnv("lift")


@pytest.mark.parametrize("value", [np.nan, 1e12])
def test_a_broken_simulation_is_a_sim_error_and_the_next_episode_is_not_touched(
    env, value, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    expected = rollout(env, 6)
    env.reset(0)
    env._env.sim.data.qvel[-1] = value
    with pytest.raises(SimError):
        env.step(action())
    assert rollout(env, 6) == expected
    assert list(tmp_path.iterdir()) == []


def test_a_scene_that_cannot_be_placed_is_a_sim_error(env, monkeypatch):
    from robosuite.utils import RandomizationError

    def fail():
        raise RandomizationError("Cannot place all objects")

    monkeypatch.setattr(env._env, "reset", fail)
    with pytest.raises(SimError, match="episode 0: Cannot place all objects"):
        env.reset(0)


def test_a_mistake_of_our_own_is_not_called_a_sim_error(env, monkeypatch):
    def fail(_):
        raise KeyError("ours")

    env.reset(0)
    monkeypatch.setattr(env._env, "step", fail)
    with pytest.raises(KeyError):
        env.step(action())


def test_versions_name_what_decides_numbers_and_pixels(env):
    versions = env.versions()
    assert (versions["robosuite"], versions["mujoco"]) == ("1.5.2", "3.3.1")
    assert versions["gl_backend"] in ("egl", "osmesa")
    assert versions["gl_renderer"]


def test_the_adapter_is_a_sim_env_of_lift(env):
    as_interface: SimEnv = env
    assert (as_interface.sim_name, as_interface.task, as_interface.robot) == (
        "robosuite",
        "Lift",
        "panda_omron",
    )
    assert (as_interface.max_steps, as_interface.control_hz) == (150, 20.0)
    env.reset(0)
    assert as_interface.observe().prompt == "Lift the red cube."


def test_closing_twice_is_fine_and_max_steps_and_size_can_be_chosen():
    small = RobosuiteEnv(camera_size=64, max_steps=3)
    small.reset(0)
    assert small.max_steps == 3
    assert small.video_frame().shape == (64, 64, 3)
    small.close()
    small.close()


@pytest.mark.parametrize(
    ("failure", "hint"),
    [
        (RuntimeError("must be an integer between 0 and 0 (inclusive), got 3"), "got 3.*osmesa"),
        (AttributeError("'NoneType' object has no attribute 'glGetError'"), "apt-get install"),
    ],
    ids=["no such device", "no library"],
)
def test_gl_that_cannot_be_set_up_is_named_with_its_remedy(monkeypatch, failure, hint):
    import robosuite

    def fail(*_, **__):
        raise failure

    monkeypatch.setattr(robosuite, "make", fail)
    monkeypatch.setenv("MUJOCO_GL", "disable")
    with pytest.raises(ConfigError, match=hint):
        RobosuiteEnv()


def test_a_mistake_of_our_own_while_building_is_not_blamed_on_gl(monkeypatch):
    import robosuite

    def fail(*_, **__):
        raise AttributeError("ours")

    monkeypatch.setattr(robosuite, "make", fail)
    with pytest.raises(AttributeError, match="ours"):
        RobosuiteEnv()
