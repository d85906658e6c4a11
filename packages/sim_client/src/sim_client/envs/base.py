"""What an episode needs of a simulator; one adapter per simulator implements it.

The contract of every adapter: the whole episode is a function of `ep_id` and the actions. It does
not depend on the process, on the episodes before it, or on when and how often images are rendered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Float32, Float64, UInt8

from sim_client.robots import Layout


@dataclass(frozen=True)
class Observation:
    """What a policy is asked with, under the keys of its request."""

    images: Mapping[str, UInt8[np.ndarray, "h w 3"]]  # request key -> upright RGB
    state: Float32[np.ndarray, " d"]
    prompt: str


@dataclass(frozen=True)
class StepResult:
    """What one control step led to."""

    success: bool  # the simulator's own success signal after this step
    reward: float
    terminated: bool  # the simulator ended the episode by itself; the step limit is the caller's


@runtime_checkable
class SimEnv(Protocol):
    """One task in one simulator, ready for one episode after another."""

    @property
    def sim_name(self) -> str:
        """The simulator's name, as --args.sim takes it."""
        ...

    @property
    def task(self) -> str:
        """The task's name, as --args.env_names takes it."""
        ...

    @property
    def max_steps(self) -> int:
        """The control steps after which an unsolved episode is a timeout."""
        ...

    @property
    def control_hz(self) -> float:
        """Control steps per simulated second."""
        ...

    @property
    def robot(self) -> str:
        """The robot's name, as the server's announcement has it."""
        ...

    @property
    def state_layout(self) -> Layout:
        """The parts of `Observation.state`, in order."""
        ...

    @property
    def action_layout(self) -> Layout:
        """The parts of an action, in order."""
        ...

    @property
    def image_keys(self) -> tuple[str, ...]:
        """The request keys of the cameras, in the order they are rendered."""
        ...

    def reset(self, ep_id: int) -> None:
        """Start episode `ep_id` from nothing but its id."""
        ...

    def observe(self) -> Observation:
        """Render the policy's cameras and read the state as they are now."""
        ...

    def video_frame(self) -> UInt8[np.ndarray, "h w 3"]:
        """Render the camera the video shows, upright RGB."""
        ...

    def step(self, action: Float[np.ndarray, " d"]) -> StepResult:
        """Do one control step with one action in the policy's order.

        Raises:
            PolicyError: The action has another width or is not finite.
            SimError: The simulation broke.
        """
        ...

    def scene(self) -> dict[str, Any]:
        """What this episode's scene holds, in plain JSON types; the same for the whole episode."""
        ...

    def physics_state(self) -> Float64[np.ndarray, " n"]:
        """The simulator's full physical state now: time, positions, velocities, activations."""
        ...

    def stages(self) -> dict[str, bool]:
        """The task's stage flags as they are now."""
        ...

    def versions(self) -> dict[str, str]:
        """The versions and the renderer that decide this simulator's numbers and pixels."""
        ...

    def close(self) -> None:
        """Free the simulation; a second call does nothing."""
        ...
