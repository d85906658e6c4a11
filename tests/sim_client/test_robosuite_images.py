import gc
from typing import Any

import numpy as np
import pytest
from robosuite_rollout import action, seeded_actions

from sim_client.envs import robosuite as adapter
from sim_client.envs.robosuite import RobosuiteEnv
from sim_client.errors import SimError

LEFT, WRIST, RIGHT = "observation/image", "observation/wrist_image", "observation/right_image"


def reference_lift():
    """Robosuite's own Lift with the three cameras among its own observables."""
    import robosuite
    from robosuite.environments.manipulation.lift import Lift

    from sim_client.envs.robosuite_cameras import add_agentview_cameras

    class LiftWithAgentviews(Lift):
        def edit_model_xml(self, xml_str):
            return add_agentview_cameras(super().edit_model_xml(xml_str))

    return robosuite.make(
        LiftWithAgentviews.__name__,
        robots="PandaOmron",
        renderer="mujoco",
        has_renderer=False,
        use_camera_obs=True,
        camera_names=["robot0_agentview_left", "robot0_eye_in_hand", "robot0_agentview_right"],
        camera_heights=256,
        camera_widths=256,
        control_freq=20,
        ignore_done=True,
    )


def raw_order(policy_action):
    """The wheel's own order: right 6, torso 1, base 3, gripper 1, mode 1 (measured)."""
    pos_rot, gripper, base, torso, mode = np.split(policy_action, [6, 7, 10, 11])
    sign = [1.0 if value >= 0.5 else -1.0 for value in (gripper[0], mode[0])]
    return np.concatenate([pos_rot, torso, base, sign])


def test_images_and_physics_equal_robosuites_own_observables_bit_for_bit(env):
    reference = reference_lift()

    def assert_equal(observed):
        seen = env.observe()
        for key, camera in (
            (LEFT, "agentview_left"),
            (WRIST, "eye_in_hand"),
            (RIGHT, "agentview_right"),
        ):
            upright = observed[f"robot0_{camera}_image"][::-1]
            np.testing.assert_array_equal(seen.images[key], upright)
        data = reference.sim.data
        np.testing.assert_array_equal(
            env.physics_state(), np.concatenate([[data.time], data.qpos, data.qvel, data.act])
        )

    def make_current():
        reference.sim._render_context_offscreen.gl_ctx.make_current()

    try:
        env.reset(7)
        reference.rng.bit_generator.state = np.random.default_rng(7).bit_generator.state
        make_current()
        observed = reference.reset()
        assert_equal(observed)
        for each in seeded_actions(6):
            env.step(each)
            make_current()
            observed, *_ = reference.step(raw_order(each))
        assert_equal(observed)
    finally:
        make_current()
        reference.close()


def test_images_are_upright_rgb_under_the_request_keys(env):
    env.reset(0)
    images = env.observe().images
    assert tuple(images) == env.image_keys == (LEFT, WRIST, RIGHT)
    assert {(image.shape, image.dtype.str) for image in images.values()} == {((256, 256, 3), "|u1")}
    white = (images[LEFT] > 200).all(axis=-1)
    assert white[128:].sum() > 2 * white[:128].sum(), "the white table is in the lower half"
    red = (images[WRIST][..., 0] > 2.0 * images[WRIST][..., 2].clip(20)).sum()
    assert red > 100, "the red cube is before the wrist camera"


def test_only_looking_renders_and_the_video_reuses_a_frame(env, monkeypatch):
    env.reset(0)
    drawn = []
    render = env._env.sim.render

    def count(**kwargs):
        drawn.append(kwargs["camera_name"])
        return render(**kwargs)

    monkeypatch.setattr(env._env.sim, "render", count)
    for _ in range(3):
        env.step(action())
    assert drawn == []
    observed, frame = env.observe(), env.video_frame()
    assert drawn == ["robot0_agentview_left", "robot0_eye_in_hand", "robot0_agentview_right"]
    np.testing.assert_array_equal(frame, observed.images[LEFT])
    env.step(action(end_effector_position=[1, 1, 1]))
    assert not np.array_equal(env.video_frame(), frame)


@pytest.mark.parametrize(
    ("camera", "body", "pos_m", "quat_wxyz", "fovy_deg"),
    [
        (
            "robot0_agentview_left",
            "mobilebase0_support",
            [-0.5, 0.35, 1.05],
            [0.55623853, 0.29935253, -0.37678665, -0.6775092],
            60.0,
        ),
        (
            "robot0_agentview_right",
            "mobilebase0_support",
            [-0.5, -0.35, 1.05],
            [0.67750919, 0.37678668, -0.29935256, -0.55623859],
            60.0,
        ),
        ("robot0_eye_in_hand", "robot0_right_hand", [0.05, 0, 0], [0, 0.707107, 0.707107, 0], 75.0),
    ],
)
def test_cameras_have_robocasas_poses_after_every_reset(
    env, camera, body, pos_m, quat_wxyz, fovy_deg
):
    for ep_id in (0, 1):
        env.reset(ep_id)
        model = env._env.sim.model
        index = model.camera_name2id(camera)
        assert model.body_id2name(model.cam_bodyid[index]) == body
        np.testing.assert_allclose(model.cam_pos[index], pos_m, atol=1e-12)
        np.testing.assert_allclose(model.cam_quat[index], quat_wxyz, atol=1e-6)
        assert model.cam_fovy[index] == fovy_deg


@pytest.fixture
def no_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.mark.usefixtures("no_collection")
def test_a_reset_that_leaves_the_old_gl_context_alive_is_refused(monkeypatch):
    monkeypatch.setattr(adapter, "RENDERER", "mjviewer")
    leaky = RobosuiteEnv()
    try:
        with pytest.raises(SimError, match="left the old GL context alive"):
            leaky.reset(0)
        gc.collect()
    finally:
        leaky.close()


def stray_simulation() -> Any:
    """Another simulation, whose GL context is now the current one and dies with it."""
    from robosuite.utils.binding_utils import MjRenderContextOffscreen, MjSim

    sim = MjSim.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
    MjRenderContextOffscreen(sim, device_id=-1)
    return sim


def test_another_simulation_of_the_process_does_not_show_in_the_images(env):
    env.reset(0)
    alone = env.video_frame()
    other = stray_simulation()
    env._cameras.forget()
    np.testing.assert_array_equal(env.video_frame(), alone)
    other._render_context_offscreen.gl_ctx.make_current()
    other.free()


@pytest.mark.usefixtures("no_collection")
def test_images_that_a_garbage_collection_changes_are_refused(env):
    env.reset(0)
    stray_simulation()
    with pytest.raises(SimError, match="changed after a garbage collection"):
        env._cameras.check_survives_collection("robot0_agentview_left")
    env.reset(0)  # with a new context, for the tests that follow
