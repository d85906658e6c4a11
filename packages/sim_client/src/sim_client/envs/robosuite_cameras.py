"""RoboCasa's cameras in a robosuite model, drawn when asked for and never behind one's back."""

import gc
import importlib
import weakref
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8

from sim_client.errors import SimError

CAMERA_BODY = "mobilebase0_support"


@dataclass(frozen=True)
class CameraPose:
    """A camera fixed to the robot's base, in the frame of `CAMERA_BODY`."""

    name: str
    pos_m: tuple[float, float, float]
    quat_wxyz: tuple[float, float, float, float]
    fovy_deg: float


# RoboCasa's third-person cameras (robocasa/utils/camera_utils.py, CAM_CONFIGS DEFAULT, be22d659).
# robosuite's own robot0_eye_in_hand already has the pose RoboCasa gives it, fovy 75.
AGENTVIEW_CAMERAS = (
    CameraPose(
        "robot0_agentview_left",
        (-0.5, 0.35, 1.05),
        (0.55623853, 0.29935253, -0.37678665, -0.6775092),
        60.0,
    ),
    CameraPose(
        "robot0_agentview_right",
        (-0.5, -0.35, 1.05),
        (0.67750919, 0.37678668, -0.29935256, -0.55623859),
        60.0,
    ),
)


def add_agentview_cameras(model_xml: str) -> str:
    """Add RoboCasa's third-person cameras to a robosuite model with an Omron base.

    Raises:
        SimError: The model has no body to fix them to.
    """
    root = ET.fromstring(model_xml)
    body = root.find(f".//body[@name='{CAMERA_BODY}']")
    if body is None:
        raise SimError(
            f"the robosuite model has no body {CAMERA_BODY!r} to fix the cameras "
            f"{', '.join(camera.name for camera in AGENTVIEW_CAMERAS)} to; the robot must be "
            "PandaOmron of robosuite 1.5.2 (packages/sim_client/pyproject.toml)."
        )
    for camera in AGENTVIEW_CAMERAS:
        attributes = {
            "name": camera.name,
            "mode": "fixed",
            "pos": " ".join(map(str, camera.pos_m)),
            "quat": " ".join(map(str, camera.quat_wxyz)),
            "fovy": str(camera.fovy_deg),
        }
        ET.SubElement(body, "camera", attributes)
    return ET.tostring(root, encoding="unicode")


class Cameras:
    """Draws the cameras of one robosuite environment, upright, at most once per state.

    robosuite neither makes a GL context current before it draws nor before it frees one, so two
    environments in a process would draw with each other's textures. This class does both, and
    watches that an old context is gone before the new one is used.
    """

    def __init__(self, env: Any, size_px: int) -> None:
        """Draw for `env`, `size_px` pixels high and wide."""
        self._env = env
        self._size_px = size_px
        self._frames: dict[str, UInt8[np.ndarray, "h w 3"]] = {}

    def forget(self) -> None:
        """Forget the drawn frames; to be called whenever the simulation has moved."""
        self._frames.clear()

    def render(self, camera: str) -> UInt8[np.ndarray, "h w 3"]:
        """One camera's RGB picture of the present state, read-only."""
        if camera not in self._frames:
            self._make_current()
            size = self._size_px
            bottom_up = self._env.sim.render(width=size, height=size, camera_name=camera)
            frame = np.ascontiguousarray(bottom_up[::-1])
            frame.flags.writeable = False
            self._frames[camera] = frame
        return self._frames[camera]

    def release_context(self) -> "weakref.ref[Any]":
        """Make the context current, so that what is freed next is its own.

        Returns:
            A reference that is dead once the context has been freed.
        """
        self.forget()
        if self._env.sim is None:
            return weakref.ref(set())
        self._make_current()
        return weakref.ref(self._env.sim._render_context_offscreen)

    def check_survives_collection(self, camera: str) -> None:
        """Refuse a renderer whose pictures a garbage collection changes.

        Raises:
            SimError: The same camera gave other pixels afterwards.
        """
        before = self.render(camera)
        self.forget()
        gc.collect()
        if not np.array_equal(before, self.render(camera)):
            raise SimError(
                "the images changed after a garbage collection, so an old GL context shares this "
                "one's textures; close every other robosuite environment of the process first."
            )

    def gl_strings(self) -> dict[str, str]:
        """What OpenGL says about itself: renderer and version."""
        gl = importlib.import_module("OpenGL.GL")
        self._make_current()
        return {
            "gl_renderer": gl.glGetString(gl.GL_RENDERER).decode(),
            "gl_version": gl.glGetString(gl.GL_VERSION).decode(),
        }

    def _make_current(self) -> None:
        self._env.sim._render_context_offscreen.gl_ctx.make_current()
