"""RoboCasa365 1.0.1 through its own gymnasium wrapper, as its benchmark defines an episode.

Protocol: `robocasa/<Task>` with split target or pretrain, PandaOmron with RoboCasa's controllers at
20 Hz, generative textures off, the default object registries, three 256x256 cameras, success as the
wrapper's `info["success"]`, as many steps as RoboCasa's registry gives the task. The wrapper never
ends an episode: whoever steps it counts.

Every episode starts with `reset(seed=ep_id)`, a full hard reset. The benchmark's own loop seeds the
first episode only; but stepping draws from the generator that the next scene is drawn from, so two
policies would not see the same scenes there. `renderer="mujoco"` frees the old GL context inside
the reset; the default one leaves that to the garbage collector, which may then delete textures of
the new context (robosuite issues 719 and 779).
"""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, UInt8

from sim_client.envs.base import Observation, StepResult
from sim_client.envs.robocasa_cameras import DeferredCameras
from sim_client.envs.robocasa_contract import (
    CAMERAS,
    TARGET_OBJECT,
    action_dict,
    describe_scene,
    prompt_from_observation,
    state_from_observation,
)
from sim_client.envs.robocasa_setup import (
    INSTALL,
    load_robocasa,
    object_models,
    quiet,
    source_version,
)
from sim_client.envs.robocasa_tasks import check_split, check_task, task_horizon
from sim_client.envs.robocasa_yaml import YamlCache
from sim_client.envs.robosuite_failures import (
    check_physics,
    failures_as_sim_errors,
    full_physics_state,
    gl_setup_as_config_error,
)
from sim_client.errors import ConfigError, SimError
from sim_client.gl import backend_in_use
from sim_client.robots import PANDA_OMRON_ACTION, PANDA_OMRON_STATE, Layout
from sim_client.seeding import seed_globals

CONTROL_HZ = 20
RENDERER = "mujoco"
VIDEO_CAMERA = "robot0_agentview_left"
LIFTED_M = 0.04  # above where the object stood, as robosuite's Lift has it
# What numpy says where a category has no model in any registry, and MuJoCo where a file is absent.
_MISSING_ASSETS = ("probabilities contain nan", "error opening file")
# Kitchen._load_model after 50 scenes in which something could not be placed.
_NO_SCENE = "could not initialize task"


class RobocasaEnv:
    """One RoboCasa task; see `sim_client.envs.base.SimEnv` for the contract."""

    sim_name = "robocasa"
    control_hz = float(CONTROL_HZ)
    robot = "panda_omron"
    state_layout: Layout = PANDA_OMRON_STATE
    action_layout: Layout = PANDA_OMRON_ACTION
    image_keys = tuple(CAMERAS)

    def __init__(
        self,
        task: str,
        *,
        split: str = "target",
        camera_size: int = 256,
        max_steps: int | None = None,
    ) -> None:
        """Build the simulation once; every episode starts with `reset`.

        Args:
            task: A task of RoboCasa's registry, without the prefix "robocasa/".
            split: Which kitchens and object models: target (10 kitchens) or pretrain (2500).
            camera_size: Height and width of every image, pixels.
            max_steps: Step limit instead of the registry's.

        Raises:
            ConfigError: No such task or split, RoboCasa or its assets are not in order, or no GL.
            SimError: RoboCasa could not build it.
        """
        check_split(split)
        with gl_setup_as_config_error():
            load_robocasa()
        check_task(task)
        self.task = task
        self.split = split
        self.max_steps = task_horizon(task) if max_steps is None else max_steps
        self._closed = False
        self._rendering_checked = False
        self._yaml = YamlCache()
        self._observation: Mapping[str, Any] = {}
        self._scene: dict[str, Any] = {}
        gymnasium = importlib.import_module("gymnasium")
        with gl_setup_as_config_error(), self._failures("building the task"), quiet():
            made = gymnasium.make(
                f"robocasa/{task}",
                disable_env_checker=True,
                split=split,
                seed=0,  # of a scene that no episode uses
                camera_widths=camera_size,
                camera_heights=camera_size,
                generative_textures=None,
                renderer=RENDERER,
            )
        self._gym: Any = made.unwrapped
        self._env: Any = self._gym.env
        self._cameras = DeferredCameras(self._env, camera_size)

    def reset(self, ep_id: int) -> None:
        """Start episode `ep_id`: reseed everything, draw and build a kitchen, let objects settle.

        Raises:
            ConfigError: `ep_id` is no seed, or the assets are incomplete.
            SimError: RoboCasa failed, or its rendering is not to be trusted.
        """
        seed_globals(ep_id)
        old_context = self._cameras.release_context()
        with self._failures(f"resetting to episode {ep_id}"), self._yaml.installed(), quiet():
            self._observation, _ = self._gym.reset(seed=ep_id)
        if old_context() is not None:
            raise SimError(
                "RoboCasa's reset left the old GL context alive, so a later garbage collection "
                f"would corrupt the images; build the environment with renderer={RENDERER!r}."
            )
        self._check_settled(ep_id)
        self._scene = describe_scene(self._env.get_ep_meta(), self._object_poses())
        if not self._rendering_checked:
            self._cameras.check_survives_collection(VIDEO_CAMERA)
            self._rendering_checked = True

    def observe(self) -> Observation:
        """Draw the policy's cameras and read the state, both as the wrapper's last observation."""
        return Observation(
            images={key: self._render(camera) for key, camera in CAMERAS.items()},
            state=state_from_observation(self._observation),
            prompt=prompt_from_observation(self._observation),
        )

    def video_frame(self) -> UInt8[np.ndarray, "h w 3"]:
        """The left third-person camera; free where `observe` has just drawn it."""
        return self._render(VIDEO_CAMERA)

    def step(self, action: Float[np.ndarray, " d"]) -> StepResult:
        """Do one control step (25 substeps of 2 ms) with one action in the policy's order.

        Raises:
            PolicyError: The action has another width or is not finite.
            SimError: The simulation broke.
        """
        parts = action_dict(action)
        self._cameras.forget()
        with self._failures("stepping"):
            self._observation, reward, terminated, _, info = self._gym.step(parts)
        check_physics(self._env.sim.data)
        return StepResult(
            success=bool(info["success"]), reward=float(reward), terminated=bool(terminated)
        )

    def scene(self) -> dict[str, Any]:
        """Layout, style, sentence, objects and the base's pose, as drawn for this episode."""
        return self._scene

    def physics_state(self) -> Float64[np.ndarray, " n"]:
        """Time (s), qpos, qvel and act of MuJoCo, concatenated."""
        return full_physics_state(self._env.sim.data)

    def stages(self) -> dict[str, bool]:
        """How far a pick-and-place task has come; nothing for other tasks.

        grasped: both finger pads touch the object. lifted: it is 4 cm above where it stood when the
        episode began. in_cabinet, for tasks with a cabinet: RoboCasa's own check that all of it is
        inside, the first half of the task's success.
        """
        pick_place = importlib.import_module(
            "robocasa.environments.kitchen.atomic.kitchen_pick_place"
        )
        if not isinstance(self._env, pick_place.PickPlace):
            return {}
        height_m = float(self._object_poses()[TARGET_OBJECT][0][2])
        start_m = self._scene["objects"][TARGET_OBJECT]["position_m"][2]
        gripper = self._env.robots[0].gripper["right"]
        flags = {
            "grasped": bool(self._env._check_grasp(gripper, self._env.objects[TARGET_OBJECT])),
            "lifted": height_m > start_m + LIFTED_M,
        }
        if hasattr(self._env, "cab"):
            checks = importlib.import_module("robocasa.utils.object_utils")
            inside = checks.obj_inside_of(self._env, TARGET_OBJECT, self._env.cab)
            flags["in_cabinet"] = bool(inside)
        return flags

    def versions(self) -> dict[str, str]:
        """Versions, commits and object models of RoboCasa, and which GL draws the images."""
        return {
            "robocasa": source_version("robocasa"),
            "robocasa_objects": object_models(),
            "robosuite": source_version("robosuite"),
            "mujoco": importlib.import_module("mujoco").__version__,
            "gl_backend": backend_in_use(),
            **self._cameras.gl_strings(),
        }

    def close(self) -> None:
        """Free the simulation while its own GL context is current; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._cameras.release_context()
            self._gym.close()

    def _object_poses(self) -> dict[str, tuple[Any, Any]]:
        """Position (m) and rotation (wxyz) of every object now, in the world's frame."""
        data = self._env.sim.data
        return {
            name: (data.body_xpos[body].copy(), data.body_xquat[body].copy())
            for name, body in self._env.obj_body_id.items()
        }

    def _check_settled(self, ep_id: int) -> None:
        """Refuse a scene that broke by itself: MuJoCo then puts everything at its model's origin.

        The stock loop plays such an episode and counts a failure; it says nothing about a policy.
        """
        try:
            check_physics(self._env.sim.data)
        except SimError as error:
            raise SimError(
                f"episode {ep_id}'s scene broke while its objects settled, before any action: "
                f"{error}"
            ) from error

    def _render(self, camera: str) -> UInt8[np.ndarray, "h w 3"]:
        with self._failures(f"rendering {camera}"):
            return self._cameras.render(camera)

    @contextmanager
    def _failures(self, doing: str) -> Iterator[None]:
        """Tell apart what RoboCasa's installation lacks, what broke, and mistakes of our own."""
        try:
            with failures_as_sim_errors("RoboCasa", doing):
                yield
        except (FileNotFoundError, ValueError) as error:
            if not isinstance(error, FileNotFoundError) and not _says(error, *_MISSING_ASSETS):
                raise
            raise ConfigError(
                f"RoboCasa's assets are incomplete, seen while {doing} ({error}); "
                f"download the rest with {INSTALL}."
            ) from error
        except PermissionError as error:
            raise ConfigError(
                f"RoboCasa could not write beside the models it loads ({error}); make its asset "
                f"folder writable, or install it elsewhere with {INSTALL}."
            ) from error
        except RuntimeError as error:
            if not _says(error, _NO_SCENE):
                raise
            raise SimError(f"RoboCasa found no scene while {doing}: {error}") from error


def _says(error: Exception, *phrases: str) -> bool:
    text = str(error).lower()
    return any(phrase in text for phrase in phrases)
