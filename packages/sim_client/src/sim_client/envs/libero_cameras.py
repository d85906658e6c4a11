"""LIBERO's camera images, drawn only when asked for and equal to its own to the bit.

robosuite 1.4.0 takes an observation when its clock says so. `set_init_state` updates that clock
once more than a reset does, so from then on LIBERO's images and state are those of the
last-but-one of a step's 25 substeps: 2 ms before the simulation's present. Drawing the present
would give other pixels. Instead a cheap observable with LIBERO's clock keeps the abstract scene of
each camera (under 0.1 ms), and the pixels are drawn from it when somebody looks.
"""

import importlib
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from sim_client.envs.robosuite_cameras import Cameras

MAX_GEOMS = 1000  # of a scene, as robosuite 1.4.0's own; more would not be drawn there either


class LiberoCameras(Cameras):
    """Draws the scenes that were kept at LIBERO's last observation, rotated by 180 degrees.

    The rotation of robosuite's bottom-up picture is openpi's (examples/libero/main.py, 15a9616):
    the policies were trained with images that are upright and mirrored.
    """

    def __init__(self, env: Any, size_px: int, names: Sequence[str]) -> None:
        """Draw the cameras `names` of a robosuite environment `env`, `size_px` high and wide."""
        super().__init__(env, size_px)
        self._mujoco = importlib.import_module("mujoco")
        self._names = tuple(names)
        self._scenes: dict[str, Any] = {}

    def install(self, *, sampling_hz: float) -> None:
        """Let the environment keep the scenes whenever it takes an observation."""
        observables = importlib.import_module("robosuite.utils.observables")

        @observables.sensor(modality="scene")
        def keep_scenes(_: Any) -> float:
            self.keep_scenes()
            return 0.0

        self._env.add_observable(
            observables.Observable(
                name="kept_scenes", sensor=keep_scenes, sampling_rate=sampling_hz, active=False
            )
        )

    def keep_scenes(self) -> None:
        """Keep what every camera would see now; draws nothing."""
        self.forget()
        sim = self._env.sim
        context = sim._render_context_offscreen
        for name in self._names:
            if name not in self._scenes:
                self._scenes[name] = self._mujoco.MjvScene(sim.model._model, maxgeom=MAX_GEOMS)
            camera = self._mujoco.MjvCamera()
            camera.type = self._mujoco.mjtCamera.mjCAMERA_FIXED
            camera.fixedcamid = sim.model.camera_name2id(name)
            self._mujoco.mjv_updateScene(
                sim.model._model,
                sim.data._data,
                context.vopt,
                context.pert,
                camera,
                self._mujoco.mjtCatBit.mjCAT_ALL,
                self._scenes[name],
            )

    def release_context(self) -> "weakref.ref[Any]":
        """Forget the kept scenes too; see `Cameras.release_context`."""
        self._scenes.clear()
        return super().release_context()

    def render(self, camera: str) -> UInt8[np.ndarray, "h w 3"]:
        """One camera's RGB picture of the scene that was kept last, read-only."""
        if camera not in self._frames:
            self._make_current()
            size, context = self._size_px, self._env.sim._render_context_offscreen
            if size > context.con.offWidth or size > context.con.offHeight:
                context.update_offscreen_size(size, size)
            viewport = self._mujoco.MjrRect(0, 0, size, size)
            self._mujoco.mjr_render(viewport=viewport, scn=self._scenes[camera], con=context.con)
            bottom_up = context.read_pixels(size, size)
            frame = np.ascontiguousarray(bottom_up[::-1, ::-1])
            frame.flags.writeable = False
            self._frames[camera] = frame
        return self._frames[camera]
