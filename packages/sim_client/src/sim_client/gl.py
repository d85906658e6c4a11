"""Which OpenGL draws the images, decided before the first import of a simulator.

EGL is preferred and OSMesa is the fallback: with the software drivers of one Mesa release their
images are equal to the bit (measured with Mesa 22.3.6), so the choice between them does not show in
a result. With an NVIDIA driver EGL draws on the GPU, whose pixels are its own; the renderer's name
goes into the provenance.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, MutableMapping

from sim_client.errors import ConfigError

HEADLESS_BACKENDS = ("egl", "osmesa")
PROBE_TIMEOUT_S = 60.0
# The fewest Debian and Ubuntu packages with which each draws on a bare system. PyOpenGL's EGL looks
# for libOpenGL (libopengl0) or libGL and fails obscurely without either.
APT_PACKAGES = {"egl": ("libegl1", "libgl1-mesa-dri", "libopengl0"), "osmesa": ("libosmesa6",)}
_PROBE = (
    "import mujoco\n"
    "model = mujoco.MjModel.from_xml_string("
    "'<mujoco><worldbody><light/><geom size=\"1\"/></worldbody></mujoco>')\n"
    "renderer = mujoco.Renderer(model, 16, 16)\n"  # no context manager in LIBERO's MuJoCo 2.3.7
    "data = mujoco.MjData(model)\n"
    "mujoco.mj_forward(model, data)\n"
    "renderer.update_scene(data)\n"
    "assert renderer.render().any()\n"
    "del renderer\n"
)


def prepare_process(environ: MutableMapping[str, str]) -> str:
    """Set what MuJoCo, PyOpenGL and Mesa read from the environment; keep what the user set.

    Args:
        environ: The process's environment, changed in place.

    Returns:
        The backend, also in MUJOCO_GL.

    Raises:
        ConfigError: No backend works, or the GPUs of MuJoCo and CUDA cannot be matched.
    """
    backend = environ.get("MUJOCO_GL") or choose_backend(environ)
    environ["MUJOCO_GL"] = backend
    if backend in HEADLESS_BACKENDS:
        environ["PYOPENGL_PLATFORM"] = backend
    # One llvmpipe thread: the pixels are the same, and parallel episodes do not fight for cores.
    environ.setdefault("LP_NUM_THREADS", "1")
    if backend == "egl":
        device = egl_device(
            environ.get("CUDA_VISIBLE_DEVICES"), environ.get("MUJOCO_EGL_DEVICE_ID")
        )
        if device is not None:
            environ["MUJOCO_EGL_DEVICE_ID"] = device
    return backend


def backend_in_use() -> str:
    """The backend of this process, after `prepare_process`."""
    return os.environ["MUJOCO_GL"]


def choose_backend(
    environ: Mapping[str, str], works: Callable[[str, Mapping[str, str]], bool] | None = None
) -> str:
    """The user's MUJOCO_GL if it draws, else the first headless backend that does.

    Raises:
        ConfigError: None does; the message has the command that installs one.
    """
    works = works or backend_works
    asked = environ.get("MUJOCO_GL")
    for backend in (asked,) if asked else HEADLESS_BACKENDS:
        if works(backend, environ):
            return backend
    tried = f"MUJOCO_GL={asked}" if asked else " or ".join(HEADLESS_BACKENDS)
    remedy = "unset MUJOCO_GL, or install" if asked else "install"
    raise ConfigError(
        f"MuJoCo cannot draw here with {tried}: {remedy} software OpenGL, on Debian and Ubuntu "
        f"with sudo sh -c '{install_command(environ)}'"
    )


def backend_works(backend: str, environ: Mapping[str, str]) -> bool:
    """Whether MuJoCo draws a picture with this backend, tried in a process of its own.

    On which device is another question: `egl_device` answers it.
    """
    trial = {**environ, "MUJOCO_GL": backend}
    trial.pop("MUJOCO_EGL_DEVICE_ID", None)
    if backend in HEADLESS_BACKENDS:
        trial["PYOPENGL_PLATFORM"] = backend
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env=trial,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def egl_device(cuda_visible_devices: str | None, chosen: str | None) -> str | None:
    """The EGL device to draw on, so that a client stays on the GPUs it was given.

    Args:
        cuda_visible_devices: The value of CUDA_VISIBLE_DEVICES, if set.
        chosen: The value of MUJOCO_EGL_DEVICE_ID, if set.

    Returns:
        A device index as text, or None where nothing says which.

    Raises:
        ConfigError: The value names GPUs by UUID or MIG and nothing is chosen, or what is chosen is
            not among the indices.
    """
    if chosen is not None and not chosen.isdecimal():
        raise ConfigError(f"MUJOCO_EGL_DEVICE_ID must be an index such as 0, not {chosen!r}.")
    if cuda_visible_devices is None:
        return chosen
    entries = [entry.strip() for entry in cuda_visible_devices.split(",")]
    if entries[0] in ("", "-1"):  # no GPU for CUDA: draw where MuJoCo would without the variable
        return chosen or "0"
    if not all(entry.isdecimal() for entry in entries):
        if chosen is not None:
            return chosen
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES={cuda_visible_devices} is not a list of indices, so the EGL "
            "device cannot be derived from it; set MUJOCO_EGL_DEVICE_ID to the GPU's index."
        )
    if chosen is not None and chosen not in entries:
        raise ConfigError(
            f"MUJOCO_EGL_DEVICE_ID={chosen} is not among CUDA_VISIBLE_DEVICES="
            f"{cuda_visible_devices}; unset it or choose one of them."
        )
    return chosen or entries[0]


def install_command(environ: Mapping[str, str]) -> str:
    """The shell command that installs software OpenGL for the backend asked for, else for EGL."""
    packages = APT_PACKAGES.get(environ.get("MUJOCO_GL", ""), APT_PACKAGES["egl"])
    return f"apt-get update && apt-get install -y --no-install-recommends {' '.join(packages)}"
