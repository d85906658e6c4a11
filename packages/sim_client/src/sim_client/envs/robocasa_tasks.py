"""RoboCasa's tasks and task sets by name, and how long an episode of a task may take."""

import difflib
import importlib
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType

from sim_client.envs.robocasa_setup import load_robocasa
from sim_client.errors import ConfigError

SPLITS = ("target", "pretrain")


def check_task(name: str) -> None:
    """Refuse a name that is no task of RoboCasa's registry.

    Raises:
        ConfigError: There is no such task, with the nearest names; or RoboCasa is not installed.
    """
    if name not in _tasks():
        raise ConfigError(_unknown(name, [*_tasks(), *_task_sets()]))


def expand_tasks(name: str) -> tuple[str, ...]:
    """The tasks of a set such as atomic_seen or target50, in its order; a task alone is itself.

    Raises:
        ConfigError: There is neither a task nor a set of this name, with the nearest names; or
            RoboCasa is not installed.
    """
    sets = _task_sets()
    if name in sets:
        return tuple(sets[name])
    check_task(name)
    return (name,)


def task_horizon(name: str) -> int:
    """Control steps after which an episode is a timeout, as RoboCasa's registry has it.

    Never multiplied: registries before 1.0.1 held smaller numbers, which evaluators scaled up.
    """
    registry = importlib.import_module("robocasa.utils.dataset_registry_utils")
    return int(registry.get_task_horizon(name))


def check_split(split: str) -> None:
    """Refuse a split that RoboCasa does not build or that is no benchmark.

    Raises:
        ConfigError: It is neither target nor pretrain.
    """
    if split not in SPLITS:
        raise ConfigError(
            f"--args.split {split!r} is no split of RoboCasa's benchmark; "
            f"expected {' or '.join(SPLITS)}."
        )


def _registry() -> ModuleType:
    load_robocasa()
    return importlib.import_module("robocasa.utils.dataset_registry")


def _task_sets() -> Mapping[str, Sequence[str]]:
    return _registry().TASK_SET_REGISTRY


def _tasks() -> Iterable[str]:
    return _task_sets()["all_tasks"]


def _unknown(name: str, known: Sequence[str]) -> str:
    by_lower_case = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower_case, n=3, cutoff=0.5)
    names = " or ".join(repr(by_lower_case[each]) for each in near)
    return f"--args.env_names {name!r} is neither a task nor a task set of RoboCasa" + (
        f"; did you mean {names}?" if near else f"; task sets: {', '.join(_task_sets())}."
    )
