"""Imports robosuite 1.5.2 into a process prepared for it, without its start-up noise."""

import importlib
import importlib.util
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from sim_client.gl import prepare_process

logger = logging.getLogger(__name__)


def load_robosuite() -> ModuleType:
    """Import robosuite with the process prepared for it and without its start-up noise.

    Its logger then passes errors only: what it warns about is optional packages that are absent by
    intent. Warnings of MuJoCo itself go to our log instead of a file in the working directory.
    """
    if "robosuite" in sys.modules:
        return sys.modules["robosuite"]
    prepare_process(os.environ)
    _set_numba_cache(os.environ)
    logging.getLogger("robosuite_logs").addFilter(_is_error)
    with warnings.catch_warnings(), _without_cuda_devices(os.environ):
        warnings.simplefilter("ignore")
        robosuite = importlib.import_module("robosuite")
    mujoco = importlib.import_module("mujoco")
    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_log_mujoco_warning)
    return robosuite


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def _log_mujoco_warning(message: str) -> None:
    logger.warning("MuJoCo: %s", message)


@contextmanager
def _without_cuda_devices(environ: MutableMapping[str, str]) -> Iterator[None]:
    """Hide CUDA_VISIBLE_DEVICES from robosuite's import, which misreads UUIDs.

    robosuite/utils/binding_utils.py (1.5.2) asserts that MUJOCO_EGL_DEVICE_ID is a substring of it;
    sim_client.gl has already checked the two against each other.
    """
    value = environ.pop("CUDA_VISIBLE_DEVICES", None)
    try:
        yield
    finally:
        if value is not None:
            environ["CUDA_VISIBLE_DEVICES"] = value


def _set_numba_cache(environ: MutableMapping[str, str]) -> None:
    """Give numba a writable cache where robosuite's own folder is not; keep the user's choice.

    robosuite compiles at the first step (10 s and more); the cache makes that once per environment.
    """
    spec = importlib.util.find_spec("robosuite")
    package = Path(spec.origin).parent if spec and spec.origin else Path(sys.prefix)
    if "NUMBA_CACHE_DIR" in environ or os.access(package / "utils", os.W_OK):
        return
    writable = os.access(sys.prefix, os.W_OK)
    parent = Path(sys.prefix) if writable else Path(tempfile.gettempdir())
    environ["NUMBA_CACHE_DIR"] = str(parent / f"numba-cache-{os.getuid()}")
