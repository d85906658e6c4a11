"""robosuite 1.5.2 with RoboCasa's robot, cameras and layouts: real physics from the wheel alone.

Protocol: the robot is PandaOmron with robosuite's default controllers at 20 Hz. Every episode
reseeds the environment's generator in place and rebuilds the model (`hard_reset`), because a soft
reset would keep the object sizes that the constructor drew. `renderer="mujoco"` frees the old GL
context inside the reset; the default one leaves that to the garbage collector, which then deletes
textures of the new context (robosuite issues 719 and 779).
"""

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, UInt8

from sim_client.envs.base import Observation, StepResult
from sim_client.envs.robosuite_cameras import Cameras, add_agentview_cameras
from sim_client.envs.robosuite_failures import (
    check_physics,
    failures_as_sim_errors,
    full_physics_state,
    gl_setup_as_config_error,
)
from sim_client.envs.robosuite_setup import load_robosuite
from sim_client.envs.robosuite_tasks import find_task
from sim_client.errors import SimError
from sim_client.gl import backend_in_use
from sim_client.robots import (
    PANDA_OMRON_ACTION,
    PANDA_OMRON_STATE,
    Layout,
    join_state,
    split_action,
)
from sim_client.seeding import seed_globals

CONTROL_HZ = 20
RENDERER = "mujoco"
VIDEO_CAMERA = "robot0_agentview_left"

CAMERAS: Mapping[str, str] = MappingProxyType(  # request key -> camera, as RoboCasa's evaluator
    {
        "observation/image": "robot0_agentview_left",
        "observation/wrist_image": "robot0_eye_in_hand",
        "observation/right_image": "robot0_agentview_right",
    }
)
STATE_OBSERVABLES: Mapping[str, str] = MappingProxyType(  # state part -> robosuite's observable
    {
        "end_effector_position_relative": "robot0_base_to_eef_pos",
        "end_effector_rotation_relative": "robot0_base_to_eef_quat",
        "base_position": "robot0_base_pos",
        "base_rotation": "robot0_base_quat",
        "gripper_qpos": "robot0_gripper_qpos",
    }
)


class RobosuiteEnv:
    """One robosuite task with PandaOmron; see `sim_client.envs.base.SimEnv` for the contract."""

    sim_name = "robosuite"
    control_hz = float(CONTROL_HZ)
    robot = "panda_omron"
    state_layout: Layout = PANDA_OMRON_STATE
    action_layout: Layout = PANDA_OMRON_ACTION
    image_keys = tuple(CAMERAS)

    def __init__(
        self, task: str = "Lift", *, camera_size: int = 256, max_steps: int | None = None
    ) -> None:
        """Build the simulation once; every episode starts with `reset`.

        Args:
            task: A name of `TASKS`.
            camera_size: Height and width of every image, pixels.
            max_steps: Step limit instead of the task's own.

        Raises:
            ConfigError: There is no such task, or no GL device to draw on.
            SimError: robosuite could not build it.
        """
        self._task = find_task(task)
        self.task = task
        self.max_steps = self._task.max_steps if max_steps is None else max_steps
        with gl_setup_as_config_error():
            robosuite = load_robosuite()
            if self._task.module is not None:
                importlib.import_module(self._task.module)
        self._closed = False
        self._rendering_checked = False
        self._observables: Mapping[str, Any] = {}
        self._scene: dict[str, Any] = {}
        with failures_as_sim_errors(self.sim_name, "building the task"), gl_setup_as_config_error():
            self._env: Any = robosuite.make(
                task,
                robots="PandaOmron",
                renderer=RENDERER,
                has_renderer=False,
                has_offscreen_renderer=True,
                use_camera_obs=False,
                use_object_obs=False,
                control_freq=CONTROL_HZ,
                ignore_done=True,
                hard_reset=True,
            )
        self._env.set_xml_processor(add_agentview_cameras)
        self._cameras = Cameras(self._env, camera_size)

    def reset(self, ep_id: int) -> None:
        """Start episode `ep_id`: reseed everything, rebuild the model, place the objects.

        Raises:
            ConfigError: `ep_id` is no seed.
            SimError: robosuite failed, or its rendering is not to be trusted.
        """
        seed_globals(ep_id)
        # In place: the placement samplers keep the generator object they were made with.
        self._env.rng.bit_generator.state = np.random.default_rng(ep_id).bit_generator.state
        old_context = self._cameras.release_context()
        with failures_as_sim_errors(self.sim_name, f"resetting to episode {ep_id}"):
            self._observables = self._env.reset()
        if old_context() is not None:
            raise SimError(
                "robosuite's reset left the old GL context alive, so a later garbage collection "
                f"would corrupt the images; build the environment with renderer={RENDERER!r}."
            )
        check_physics(self._env.sim.data)
        self._scene = self._describe_scene()
        if not self._rendering_checked:
            self._cameras.check_survives_collection(VIDEO_CAMERA)
            self._rendering_checked = True

    def observe(self) -> Observation:
        """Render the policy's cameras and read the state as they are now."""
        return Observation(
            images={key: self._render(camera) for key, camera in CAMERAS.items()},
            state=self._state(),
            prompt=self._task.prompt.format(object=self._target.name),
        )

    def video_frame(self) -> UInt8[np.ndarray, "h w 3"]:
        """The left third-person camera; free where `observe` has just rendered it."""
        return self._render(VIDEO_CAMERA)

    def step(self, action: Float[np.ndarray, " d"]) -> StepResult:
        """Do one control step (25 substeps of 2 ms) with one action in the policy's order.

        The numbers are not clipped here: the controllers clip them, as for RoboCasa's wrapper.

        Raises:
            PolicyError: The action has another width or is not finite.
            SimError: The simulation broke.
        """
        parts = split_action(action, self.action_layout)
        self._cameras.forget()
        with failures_as_sim_errors(self.sim_name, "stepping"):
            self._observables, reward, _, _ = self._env.step(self._controller_action(parts))
        check_physics(self._env.sim.data)
        return StepResult(
            success=bool(self._env._check_success()), reward=float(reward), terminated=False
        )

    def scene(self) -> dict[str, Any]:
        """The target's initial pose and half sizes and what else the task has drawn."""
        return self._scene

    def physics_state(self) -> Float64[np.ndarray, " n"]:
        """Time (s), qpos, qvel and act of MuJoCo, concatenated."""
        return full_physics_state(self._env.sim.data)

    def stages(self) -> dict[str, bool]:
        """Whether both finger pads touch the target, and the task's own flags."""
        gripper = self._env.robots[0].gripper
        return {
            "grasped": bool(self._env._check_grasp(gripper, self._target)),
            **self._task.stages(self._env),
        }

    def versions(self) -> dict[str, str]:
        """Versions of robosuite and MuJoCo, and which GL draws the images."""
        return {
            "robosuite": load_robosuite().__version__,
            "mujoco": importlib.import_module("mujoco").__version__,
            "gl_backend": backend_in_use(),
            **self._cameras.gl_strings(),
        }

    def close(self) -> None:
        """Free the simulation while its own GL context is current; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._cameras.release_context()
            self._env.close()

    @property
    def _target(self) -> Any:
        return getattr(self._env, self._task.target)

    def _state(self) -> Any:
        parts = {name: self._observables[key] for name, key in STATE_OBSERVABLES.items()}
        return join_state(parts, self.state_layout)

    def _controller_action(self, parts: Mapping[str, Float[np.ndarray, " _"]]) -> Any:
        """The action in robosuite's own order, built by name.

        Source: robocasa/wrappers/gym_wrapper.py (be22d659) for the two thresholds and the split of
        base_motion.
        """
        controller = self._env.robots[0].composite_controller
        base_motion = parts["base_motion"]
        limbs = {
            "right": np.concatenate(
                [parts["end_effector_position"], parts["end_effector_rotation"]]
            ),
            "right_gripper": _below_or_above_half(parts["gripper_close"]),
            "base": base_motion[:3],
            "torso": base_motion[3:],
            "base_mode": _below_or_above_half(parts["control_mode"])[0],
        }
        return controller.create_action_vector(limbs)

    def _describe_scene(self) -> dict[str, Any]:
        data, target = self._env.sim.data, self._target
        return {
            "target": target.name,
            "position_m": data.get_body_xpos(target.root_body).tolist(),
            "rotation_wxyz": data.get_body_xquat(target.root_body).tolist(),
            **self._task.scene(self._env),
        }

    def _render(self, camera: str) -> UInt8[np.ndarray, "h w 3"]:
        with failures_as_sim_errors(self.sim_name, f"rendering {camera}"):
            return self._cameras.render(camera)


def _below_or_above_half(part: Float[np.ndarray, " 1"]) -> Float[np.ndarray, " 1"]:
    return np.where(part < 0.5, -1.0, 1.0)
