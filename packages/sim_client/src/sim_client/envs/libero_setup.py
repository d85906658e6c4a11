"""Imports LIBERO and its robosuite 1.4.0 into a process prepared for them."""

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from sim_client.envs.libero_tasks import load_benchmark
from sim_client.envs.robosuite_setup import load_robosuite


def load_libero() -> ModuleType:
    """Import `libero.libero.envs`, with GL chosen and without start-up noise.

    Raises:
        ConfigError: LIBERO is not installed, or nothing can draw.
    """
    load_benchmark()
    with _without_log_file():
        load_robosuite()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("libero.libero.envs")


class _NoFile(logging.NullHandler):
    """Stands in for a log file that nothing should write."""

    def __init__(self, filename: str | Path) -> None:
        super().__init__()


@contextmanager
def _without_log_file() -> Iterator[None]:
    """Keep robosuite 1.4.0 from opening /tmp/robosuite.log at import.

    Its import fails where another user has written that file.
    """
    file_handler = logging.FileHandler
    logging.FileHandler = _NoFile  # pyright: ignore[reportAttributeAccessIssue]  # on purpose
    try:
        yield
    finally:
        logging.FileHandler = file_handler
