"""The robosuite tasks that can be evaluated; a task is one row of the table."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from sim_client.errors import ConfigError


@dataclass(frozen=True)
class RobosuiteTask:
    """One task: its sentence, its step limit and the object its flags are about."""

    prompt: str
    max_steps: int
    target: str  # attribute of the robosuite environment that holds the object


TASKS: Mapping[str, RobosuiteTask] = MappingProxyType(
    {"Lift": RobosuiteTask(prompt="Lift the red cube.", max_steps=150, target="cube")}
)


def find_task(name: str) -> RobosuiteTask:
    """Look a task up by name.

    Raises:
        ConfigError: There is none of this name; the message names the nearest.
    """
    if name in TASKS:
        return TASKS[name]
    near = difflib.get_close_matches(name, TASKS, n=3, cutoff=0.4)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise ConfigError(
        f"--args.env_names {name!r} is no task of robosuite here.{hint} Tasks: {', '.join(TASKS)}."
    )
