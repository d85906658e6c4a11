"""The simulators that --args.sim can name, and what is known of each before one is built."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from sim_client.envs import libero_tasks, robocasa_tasks
from sim_client.envs.base import SimEnv
from sim_client.envs.libero import LiberoEnv
from sim_client.envs.robocasa import RobocasaEnv
from sim_client.envs.robosuite import RobosuiteEnv
from sim_client.envs.robosuite_tasks import find_task
from sim_client.robots import Layout


@runtime_checkable
class MakeEnv(Protocol):
    """Builds the environment of one task."""

    def __call__(self, task: str, *, camera_size: int, max_steps: int | None, split: str) -> SimEnv:
        """Build it; `max_steps` None takes the task's own number."""
        ...


@dataclasses.dataclass(frozen=True)
class Sim:
    """One simulator, as the contract with a server sees it.

    Attributes:
        name: As --args.sim takes it.
        robot: The robot whose layouts it uses.
        state_layout: Parts of the state, in order.
        action_layout: Parts of an action, in order.
        image_keys: Request keys of the cameras.
        check_task: Raises ConfigError, with the nearest names, for a task it does not have.
        expand_tasks: The tasks that a name stands for: itself, or those of a suite.
        make: Builds a task's environment.
        mp4_roundtrip: Whether frames pass through the training's video codec by default.
        check_split: Raises ConfigError for a split that it does not have; None: it has none.
    """

    name: str
    robot: str
    state_layout: Layout
    action_layout: Layout
    image_keys: tuple[str, ...]
    check_task: Callable[[str], object]
    make: MakeEnv
    expand_tasks: Callable[[str], tuple[str, ...]] = lambda name: (name,)
    mp4_roundtrip: bool = False
    check_split: Callable[[str], object] | None = None


def _make_robosuite(
    task: str, *, camera_size: int, max_steps: int | None, split: str
) -> RobosuiteEnv:
    del split  # robosuite's tasks have none
    return RobosuiteEnv(task, camera_size=camera_size, max_steps=max_steps)


def _make_libero(task: str, *, camera_size: int, max_steps: int | None, split: str) -> LiberoEnv:
    del split  # LIBERO's suites have none
    return LiberoEnv(task, camera_size=camera_size, max_steps=max_steps)


def _sim(
    adapter: type[RobosuiteEnv | LiberoEnv | RobocasaEnv],
    make: MakeEnv,
    check_task: Callable[[str], object],
    **more: Any,
) -> Sim:
    """A row with what the adapter's class says of itself."""
    return Sim(
        name=adapter.sim_name,
        robot=adapter.robot,
        state_layout=adapter.state_layout,
        action_layout=adapter.action_layout,
        image_keys=adapter.image_keys,
        check_task=check_task,
        make=make,
        **more,
    )


SIMS = {
    sim.name: sim
    for sim in (
        _sim(RobosuiteEnv, _make_robosuite, find_task),
        _sim(
            LiberoEnv,
            _make_libero,
            libero_tasks.check_task,
            expand_tasks=libero_tasks.expand_tasks,
        ),
        _sim(
            RobocasaEnv,
            RobocasaEnv,
            robocasa_tasks.check_task,
            expand_tasks=robocasa_tasks.expand_tasks,
            check_split=robocasa_tasks.check_split,
            mp4_roundtrip=True,
        ),
    )
}
