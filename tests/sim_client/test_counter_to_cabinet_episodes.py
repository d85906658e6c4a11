import subprocess
import sys

import numpy as np
import pytest
from robosuite_rollout import action, rollout

from sim_client.envs.base import StepResult
from sim_client.envs.counter_to_cabinet import OBJECTS
from sim_client.envs.robosuite import RobosuiteEnv
from sim_client.envs.robosuite_tasks import find_task

CAN_EPISODE = 2  # its target is the can, which any yaw of the gripper grasps
LEMON_EPISODE = 1
CEREAL_EPISODE = 0  # half sizes 5, 1.5 and 7.5 cm


@pytest.fixture(scope="module")
def cabinet_env():
    built = RobosuiteEnv("CounterToCabinet")
    yield built
    built.close()


def put(env, position_m, rotation_wxyz=(1.0, 0.0, 0.0, 0.0)):
    """Teleport the target, at rest, and let the simulation follow it."""
    sim, joint = env._env.sim, env._target.joints[0]
    sim.data.set_joint_qpos(joint, [*position_m, *rotation_wxyz])
    sim.data.set_joint_qvel(joint, np.zeros(6))
    sim.forward()


def floor_of_cabinet(env, *, x_from_center_m=0.0):
    center = np.array(env.scene()["cabinet_interior_center_m"])
    height = env.scene()["half_size_m"][2]
    return center + np.array([x_from_center_m, 0.0, height - 0.21 + 0.001])


def grip_site(env):
    return env._env.sim.data.get_site_xpos("gripper0_right_grip_site").copy()


def target_position(env):
    return env._env.sim.data.get_body_xpos(env._target.root_body).copy()


def test_an_episode_does_not_depend_on_the_episodes_before_it(cabinet_env):
    first = rollout(cabinet_env, 3)
    other = rollout(cabinet_env, 4)
    assert rollout(cabinet_env, 3) == first
    assert other["start"]["physics"] != first["start"]["physics"]
    fresh = RobosuiteEnv("CounterToCabinet")
    try:
        assert rollout(fresh, 3) == first
    finally:
        fresh.close()


def test_the_prompt_names_the_target_as_robocasas_does(cabinet_env):
    prompts = set()
    for ep_id in range(4):
        cabinet_env.reset(ep_id)
        target = cabinet_env.scene()["target"]
        prompts.add(cabinet_env.observe().prompt)
        assert target in OBJECTS
        assert cabinet_env.observe().prompt == (
            f"Pick the {target} from the counter and place it in the cabinet."
        )
    assert len(prompts) > 1


def test_nothing_touches_the_robot_and_nothing_falls_over_at_the_start(cabinet_env):
    for ep_id in range(4):
        cabinet_env.reset(ep_id)
        sim = cabinet_env._env.sim
        assert sim.data.ncon == 0
        for _ in range(10):
            cabinet_env.step(action())
        for each in cabinet_env._env._objects:
            upright = sim.data.get_body_xmat(each.root_body)[2, 2]
            assert upright > 0.99, each.name
        assert cabinet_env.stages() == {"grasped": False, "lifted": False, "in_cabinet": False}


def test_all_inside_with_the_gripper_away_is_success(cabinet_env):
    cabinet_env.reset(0)
    put(cabinet_env, floor_of_cabinet(cabinet_env))
    result = cabinet_env.step(action())
    assert np.linalg.norm(grip_site(cabinet_env) - target_position(cabinet_env)) > 0.25
    assert (result.success, result.reward) == (True, 1.0)
    assert cabinet_env.stages()["in_cabinet"]


@pytest.mark.parametrize(("gap_m", "success"), [(0.24, False), (0.26, True)])
def test_success_needs_the_gripper_farther_than_a_quarter_metre(cabinet_env, gap_m, success):
    cabinet_env.reset(0)
    put(cabinet_env, grip_site(cabinet_env) + np.array([gap_m, 0.0, 0.0]))
    assert cabinet_env.stages()["in_cabinet"]
    assert cabinet_env._env._check_success() == success


@pytest.mark.parametrize(
    ("rotation_wxyz", "inside"),
    [([0.5, 0.5, 0.5, 0.5], False), ([0.5, -0.5, -0.5, -0.5], True)],
    ids=["its height along the depth", "its thickness along the depth"],
)
def test_how_a_box_lies_decides_whether_it_sticks_out(cabinet_env, rotation_wxyz, inside):
    cabinet_env.reset(CEREAL_EPISODE)
    near_the_front = floor_of_cabinet(cabinet_env, x_from_center_m=-0.1)
    put(cabinet_env, near_the_front, rotation_wxyz)
    assert cabinet_env.stages()["in_cabinet"] == inside


def test_a_rolled_object_on_the_floor_is_inside_although_its_own_box_is_not(cabinet_env):
    cabinet_env.reset(LEMON_EPISODE)
    rolled_by_45_degrees = [np.cos(np.pi / 8), np.sin(np.pi / 8), 0.0, 0.0]
    put(cabinet_env, floor_of_cabinet(cabinet_env), rolled_by_45_degrees)
    assert cabinet_env.stages()["in_cabinet"]


def go(env, goal, close, n_steps=60):
    """Move the grip site to `goal` (world, m); the last step's result and the flags ever true."""
    flags, result = set(), StepResult(success=False, reward=0.0, terminated=False)
    for _ in range(n_steps):
        gap = np.asarray(goal) - grip_site(env)
        toward = np.clip(0.9 * gap / 0.05, -1, 1)
        result = env.step(action(end_effector_position=toward, gripper_close=close))
        flags |= {name for name, reached in env.stages().items() if reached}
        if result.success or np.linalg.norm(gap) < 0.012:
            break
    return result, flags


def test_the_robot_can_carry_the_can_into_the_cabinet_and_leave(cabinet_env):
    cabinet_env.reset(CAN_EPISODE)
    can, center = target_position(cabinet_env), cabinet_env.scene()["cabinet_interior_center_m"]
    inside = np.array([center[0] - 0.03, center[1], can[2] + 0.1])
    put_down, out = inside - [0, 0, 0.08], [-0.15, center[1], can[2] + 0.1]
    steps = [
        go(cabinet_env, goal, close)
        for goal, close in [
            (can + np.array([0, 0, 0.2]), 0),
            (can, 0),
            *[(can, 1)] * 8,
            (can + np.array([0, 0, 0.1]), 1),
            ([0.0, center[1], inside[2]], 1),
            (inside, 1),
            (put_down, 1),
            *[(put_down, 0)] * 6,
            (inside, 0),
        ]
    ]
    assert not any(result.success for result, _ in steps), "the gripper is still near"
    assert set().union(*(flags for _, flags in steps)) == {"grasped", "lifted", "in_cabinet"}
    result, _ = go(cabinet_env, out, 0)
    assert result == StepResult(success=True, reward=1.0, terminated=False)


def test_half_inside_is_not_in_the_cabinet(cabinet_env):
    cabinet_env.reset(0)
    put(cabinet_env, floor_of_cabinet(cabinet_env, x_from_center_m=-0.14))
    result = cabinet_env.step(action())
    assert not result.success
    assert not cabinet_env.stages()["in_cabinet"]


def test_lifted_starts_four_centimetres_above_the_start(cabinet_env):
    cabinet_env.reset(0)
    start = target_position(cabinet_env)
    put(cabinet_env, start + np.array([0, 0, 0.039]))
    assert not cabinet_env.stages()["lifted"]
    put(cabinet_env, start + np.array([0, 0, 0.041]))
    assert cabinet_env.stages()["lifted"]


def test_the_table_has_robocasas_step_limit():
    assert find_task("CounterToCabinet").max_steps == 750


def test_listing_the_task_imports_no_simulator():
    script = (
        "import sys; import sim_client.envs.registry, sim_client.envs.counter_to_cabinet; "
        "sys.exit('robosuite' in sys.modules or 'mujoco' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
