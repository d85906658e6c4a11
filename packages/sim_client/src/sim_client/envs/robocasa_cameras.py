"""RoboCasa's camera observations, drawn only when they are looked at and equal to the stock ones.

RoboCasa draws three images in every step; a policy that replans every fifth step looks at one step
in five. Drawing later from the simulation need not give the same pixels: robosuite samples a
camera inside the step, before the fixtures update their state. So the camera's sensor records what
there is to draw (MuJoCo's abstract scene: shapes, colours, lights, camera) at the moment the stock
sensor would draw, and the record is drawn if somebody looks. The sensor's clock is untouched:
disabling the observable instead would shift it (measured: other images and states).
"""

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import UInt8

from sim_client.envs.robosuite_cameras import Cameras

Sensor = Callable[[Any], UInt8[np.ndarray, "h w 3"]]


class DeferredCameras(Cameras):
    """Stands in for the camera sensors of one RoboCasa environment from its next reset on."""

    def __init__(self, env: Any, size_px: int) -> None:
        """Take over the cameras of `env`, `size_px` pixels high and wide."""
        super().__init__(env, size_px)
        self._scenes: dict[str, Any] = {}
        self._blank = np.zeros((size_px, size_px, 3), np.uint8)
        # An attribute of the instance: robosuite rebuilds its observables in every reset.
        env._create_camera_sensors = self._create_camera_sensors

    def render(self, camera: str) -> UInt8[np.ndarray, "h w 3"]:
        """One camera's RGB picture as of its last sample, upright and read-only."""
        if camera not in self._frames:
            self._make_current()
            context = self._env.sim._render_context_offscreen
            size = self._size_px
            context.update_offscreen_size(
                max(size, context.con.offWidth), max(size, context.con.offHeight)
            )
            mujoco = importlib.import_module("mujoco")
            viewport = mujoco.MjrRect(0, 0, size, size)
            mujoco.mjr_render(viewport, self._scenes[camera], context.con)
            frame = np.ascontiguousarray(context.read_pixels(size, size)[::-1])
            frame.flags.writeable = False
            self._frames[camera] = frame
        return self._frames[camera]

    def _create_camera_sensors(
        self, cam_name: str, *_args: Any, **_kwargs: Any
    ) -> tuple[list[Sensor], list[str]]:
        """What robosuite asks for each camera when it sets up a reset's observables."""
        mujoco = importlib.import_module("mujoco")
        sim = self._env.sim
        camera = mujoco.MjvCamera()
        camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        camera.fixedcamid = sim.model.camera_name2id(cam_name)
        max_shapes = sim._render_context_offscreen.scn.maxgeom
        scene = mujoco.MjvScene(sim.model._model, maxgeom=max_shapes)
        self._scenes[cam_name] = scene

        # It must not hold the GL context: the next reset has to free it before it makes its own.
        def record(_obs_cache: Any) -> UInt8[np.ndarray, "h w 3"]:
            sim = self._env.sim
            context = sim._render_context_offscreen
            mujoco.mjv_updateScene(
                sim.model._model,
                sim.data._data,
                context.vopt,
                context.pert,
                camera,
                mujoco.mjtCatBit.mjCAT_ALL,
                scene,
            )
            return self._blank

        record.__modality__ = "image"  # pyright: ignore[reportFunctionMemberAccess] # robosuite's mark
        return [record], [f"{cam_name}_image"]
