"""Which exceptions and which states of robosuite mean that the simulation broke."""

import ctypes
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from jaxtyping import Float64

from sim_client.errors import ConfigError, SimError
from sim_client.gl import choose_backend


def full_physics_state(data: Any) -> Float64[np.ndarray, " n"]:
    """Time (s), qpos, qvel and act of MuJoCo, concatenated, from robosuite's `sim.data`."""
    return np.concatenate([[data.time], data.qpos, data.qvel, data.act])


def check_physics(data: Any) -> None:
    """Refuse a state that MuJoCo has given up on.

    MuJoCo answers bad numbers by resetting the state: its warning counters tell, not NaN alone.

    Raises:
        SimError: The state is not finite, or MuJoCo has counted a bad position, velocity,
            acceleration or control in this episode.
    """
    mujoco = importlib.import_module("mujoco")
    bad = [
        kind.name
        for kind in (
            mujoco.mjtWarning.mjWARN_BADQPOS,
            mujoco.mjtWarning.mjWARN_BADQVEL,
            mujoco.mjtWarning.mjWARN_BADQACC,
            mujoco.mjtWarning.mjWARN_BADCTRL,
        )
        if data.warning[kind].number
    ]
    if bad or not np.isfinite(full_physics_state(data)).all():
        raise SimError(
            f"MuJoCo's state is no longer valid at {data.time:.3f} s of the episode "
            f"({', '.join(bad) or 'not finite'}); the simulation is unstable."
        )


def failure_types() -> tuple[type[Exception], ...]:
    """The exceptions that mean that the simulation or its renderer broke, not that we did."""
    mujoco = importlib.import_module("mujoco")
    errors = importlib.import_module("robosuite.utils.errors")
    gl_error = importlib.import_module("OpenGL.error")
    return (
        mujoco.FatalError,
        mujoco.UnexpectedError,
        errors.robosuiteError,
        gl_error.Error,
        np.linalg.LinAlgError,
    )


@contextmanager
def failures_as_sim_errors(simulator: str, doing: str) -> Iterator[None]:
    """Turn `failure_types` into SimError, naming the simulator and what it was doing."""
    try:
        yield
    except failure_types() as error:
        raise SimError(f"{simulator} failed while {doing}: {error}") from error


@contextmanager
def gl_setup_as_config_error() -> Iterator[None]:
    """Name the cause of what robosuite and PyOpenGL say with built-in exceptions.

    The first two are a missing library, the others a GL device that cannot be opened.
    """
    try:
        yield
    except (AttributeError, ctypes.ArgumentError):
        choose_backend(os.environ)
        raise
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"OpenGL could not be set up ({error}); check MUJOCO_EGL_DEVICE_ID and "
            "CUDA_VISIBLE_DEVICES, or draw in software with MUJOCO_GL=osmesa."
        ) from error
