"""Flow matching: the times, their embeddings, and Euler's method from noise to actions.

t = 1 is noise and t = 0 is data. Sources: openpi src/openpi/models/pi0.py, posemb_sincos and
sample_actions (15a9616).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

MIN_PERIOD, MAX_PERIOD = 4e-3, 4.0  # pi0.py, embed_suffix


class Schedule(NamedTuple):
    """What every flow step knows about its time; constants of the compiled program."""

    times: Float[np.ndarray, " steps"]
    embeddings: Float[np.ndarray, "steps d"]


class Trajectory(NamedTuple):
    """Every flow step: the velocity there, and the chunk after it."""

    v_t: Float[Array, "steps b h a"]
    x_t: Float[Array, "steps b h a"]


def make_schedule(num_steps: int, width: int) -> Schedule:
    """Times from 1 down to 1 / num_steps, and their embeddings.

    The time is accumulated in float32 as in openpi: from the third of ten steps on it is not
    float32(1 - k / 10).

    Args:
        num_steps: At least 1.
        width: Of the action expert.
    """
    times = np.ones(num_steps, np.float32)
    for step in range(1, num_steps):
        times[step] = times[step - 1] + np.float32(-1.0 / num_steps)
    return Schedule(times, embed_times(times, width))


def embed_times(times: Float[np.ndarray, " steps"], width: int) -> Float[np.ndarray, "steps width"]:
    """Sines, then cosines, of each time at `width / 2` periods spaced geometrically.

    Computed here and not in the compiled program: arguments reach 1571 rad, where one float32 ulp
    moves a sine by 1e-4, and whether XLA fuses the product into the sine's range reduction
    differs between programs. The arguments are float32 products in openpi's order.
    """
    half = width // 2
    # XLA divides by a constant through its reciprocal, so jnp.linspace steps by a rounded 1/(n-1)
    fraction = np.arange(half, dtype=np.float32) * (np.float32(1.0) / np.float32(half - 1))
    fraction[-1] = 1.0
    ratio = ((MAX_PERIOD / MIN_PERIOD) ** fraction.astype(np.float64)).astype(np.float32)
    period = np.float32(MIN_PERIOD) * ratio
    frequency = np.float32(1.0) / period * np.float32(2.0) * np.float32(np.pi)
    radians = (times[:, None] * frequency[None, :]).astype(np.float64)
    return np.concatenate([np.sin(radians), np.cos(radians)], axis=1).astype(np.float32)


def integrate(
    velocity: Callable[[Float[Array, "b h a"], Float[Array, " d"]], Float[Array, "b h a"]],
    noise: Float[Array, "b h a"],
    schedule: Schedule,
) -> Trajectory:
    """Take one Euler step per time of the schedule, from `noise` at t = 1.

    The product of step and velocity keeps the velocity's dtype, as in openpi.

    Args:
        velocity: The model's v, given the chunk and the embedding of its time.
        noise: Start of the integration, float32.
        schedule: From `make_schedule`.
    """
    dt = jnp.float32(-1.0 / len(schedule.times))

    def step(
        x: Float[Array, "b h a"], time_embedding: Float[Array, " d"]
    ) -> tuple[Float[Array, "b h a"], Trajectory]:
        v = velocity(x, time_embedding)
        x_next = x + dt.astype(v.dtype) * v
        return x_next, Trajectory(v, x_next)

    _, trajectory = jax.lax.scan(step, noise, jnp.asarray(schedule.embeddings))
    return trajectory
