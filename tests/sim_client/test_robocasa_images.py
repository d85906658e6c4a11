"""Deferred drawing and cached YAML against the stock wrapper, bit for bit."""

import importlib
from typing import Any

import numpy as np
import pytest
from robocasa_rollout import N_STEPS, TASK, action, require_robocasa
from robosuite_rollout import seeded_actions

from sim_client.envs.robocasa import RobocasaEnv
from sim_client.envs.robocasa_setup import quiet
from sim_client.envs.robocasa_yaml import YamlCache
from sim_client.robots import PANDA_OMRON_STATE
from sim_client.seeding import seed_globals

require_robocasa()
pytestmark = pytest.mark.robocasa
LEFT, WRIST, RIGHT = "observation/image", "observation/wrist_image", "observation/right_image"


@pytest.fixture(scope="module")
def env():
    built = RobocasaEnv(TASK)
    yield built
    built.close()


class StockWrapper:
    """RoboCasa's own wrapper, drawing every camera in every step."""

    def __init__(self):
        gymnasium = importlib.import_module("gymnasium")
        with quiet():
            made = gymnasium.make(
                f"robocasa/{TASK}", disable_env_checker=True, split="target", seed=5
            )
        self.gym = made.unwrapped

    def reset(self, ep_id):
        self.make_current()
        seed_globals(ep_id)
        with quiet():
            return self.gym.reset(seed=ep_id)[0]

    def step(self, policy_action):
        env_utils = importlib.import_module("robocasa.utils.env_utils")
        self.make_current()
        return self.gym.step(env_utils.convert_action(policy_action))[0]

    def make_current(self):
        if self.gym.env.sim is not None:
            self.gym.env.sim._render_context_offscreen.gl_ctx.make_current()

    def physics_state(self):
        data = self.gym.env.sim.data
        return np.concatenate([[data.time], data.qpos, data.qvel, data.act])

    def close(self):
        self.make_current()
        self.gym.close()


@pytest.fixture(scope="module")
def stock(env):
    built = StockWrapper()
    yield built
    built.close()


def assert_same_as_stock(env, stock, observed):
    seen = env.observe()
    np.testing.assert_array_equal(seen.images[LEFT], observed["video.robot0_agentview_left"])
    np.testing.assert_array_equal(seen.images[WRIST], observed["video.robot0_eye_in_hand"])
    np.testing.assert_array_equal(seen.images[RIGHT], observed["video.robot0_agentview_right"])
    expected_state = [observed[f"state.{name}"] for name, _ in PANDA_OMRON_STATE]
    np.testing.assert_array_equal(seen.state, np.concatenate(expected_state))
    assert seen.prompt == observed["annotation.human.task_description"]
    np.testing.assert_array_equal(env.physics_state(), stock.physics_state())
    generators = [each.rng.bit_generator.state for each in (env._env, stock.gym.env)]
    assert generators[0] == generators[1]


@pytest.mark.parametrize("ep_id", [0, 1])
def test_queries_see_what_the_stock_wrapper_gives_although_other_steps_draw_nothing(
    env, stock, ep_id
):
    env.reset(ep_id)
    assert_same_as_stock(env, stock, stock.reset(ep_id))
    for index, each in enumerate(seeded_actions(N_STEPS)):
        each[11] = index % 2
        env.step(each)
        observed = stock.step(each)
        if index % 5 == 4:
            assert_same_as_stock(env, stock, observed)


def test_images_are_those_of_the_sample_and_not_of_the_moment_one_looks(env):
    env.reset(0)
    env.step(action())
    expected = env.observe().images
    env._cameras.forget()
    env._env.sim.data.qpos[:] = env._env.sim.model.qpos0
    env._env.sim.forward()
    for key, image in env.observe().images.items():
        np.testing.assert_array_equal(image, expected[key])


def test_only_looking_draws_and_the_video_reuses_a_frame(env, monkeypatch):
    mujoco: Any = importlib.import_module("mujoco")
    drawn = []
    draw = mujoco.mjr_render

    def count(*args, **kwargs):
        drawn.append(1)
        return draw(*args, **kwargs)

    monkeypatch.setattr(mujoco, "mjr_render", count)
    env.reset(0)
    for _ in range(3):
        env.step(action())
    assert drawn == []
    observed, frame = env.observe(), env.video_frame()
    assert len(drawn) == 3
    np.testing.assert_array_equal(frame, observed.images[LEFT])
    env.step(action(end_effector_position=[1, 1, 1]))
    assert not np.array_equal(env.video_frame(), frame)


def test_a_yaml_text_is_parsed_once_and_every_reader_gets_a_copy(monkeypatch):
    yaml: Any = importlib.import_module("yaml")
    parsed = []
    monkeypatch.setattr(yaml, "safe_load", lambda text: parsed.append(text) or {"a": [1]})
    stock_parse = yaml.safe_load
    with YamlCache().installed():
        first = yaml.safe_load("a: [1]")
        first["a"].append(2)
        assert yaml.safe_load("a: [1]") == {"a": [1]}
        yaml.safe_load("b: 1")
    assert parsed == ["a: [1]", "b: 1"]
    assert yaml.safe_load is stock_parse
