"""The robosuite tasks that can be evaluated; a task is one row of the table."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sim_client.errors import ConfigError


@dataclass(frozen=True)
class RobosuiteTask:
    """One task: its sentence, its step limit and what its flags and its scene are about.

    Attributes:
        prompt: The sentence; {object} in it stands for the name of the episode's target.
        max_steps: Step limit of an evaluation.
        target: Attribute of the robosuite environment that holds the object.
        stages: The task's stage flags beside grasped, of the robosuite environment as it is.
        scene: What the scene holds beside the target's pose, right after a reset.
        module: The module that registers the task with robosuite, if it is one of ours.
    """

    prompt: str
    max_steps: int
    target: str
    stages: Callable[[Any], dict[str, bool]]
    scene: Callable[[Any], dict[str, Any]]
    module: str | None = None


def _lift_stages(env: Any) -> dict[str, bool]:
    return {"lifted": bool(env._check_success())}


def _lift_scene(env: Any) -> dict[str, Any]:
    return {"half_size_m": [float(size) for size in env.cube.size]}


TASKS: Mapping[str, RobosuiteTask] = MappingProxyType(
    {
        "Lift": RobosuiteTask(
            prompt="Lift the red cube.",
            max_steps=150,
            target="cube",
            stages=_lift_stages,
            scene=_lift_scene,
        ),
        "CounterToCabinet": RobosuiteTask(
            prompt="Pick the {object} from the counter and place it in the cabinet.",
            max_steps=750,
            target="target",
            stages=lambda env: env.task_stages(),
            scene=lambda env: env.task_scene(),
            module="sim_client.envs.counter_to_cabinet_env",
        ),
    }
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
