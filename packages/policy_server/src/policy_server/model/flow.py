"""Flow matching: the embedding of the flow time, and Euler's method from noise to actions.

t = 1 is noise and t = 0 is data. Sources: openpi src/openpi/models/pi0.py, posemb_sincos and
sample_actions (15a9616).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

MIN_PERIOD, MAX_PERIOD = 4e-3, 4.0  # pi0.py, embed_suffix


class Trajectory(NamedTuple):
    """Every flow step: the time before it, the velocity there, and the chunk after it."""

    times: Float[Array, " steps"]
    v_t: Float[Array, "steps b h a"]
    x_t: Float[Array, "steps b h a"]


def embed_time(time: Float[Array, " b"], width: int) -> Float[Array, "b width"]:
    """Sines, then cosines, of `time` at `width / 2` periods spaced geometrically, in float32.

    The operations are in openpi's order: at arguments up to 1571 rad another differs by 1e-5.
    """
    fraction = jnp.linspace(0.0, 1.0, width // 2)
    period = MIN_PERIOD * (MAX_PERIOD / MIN_PERIOD) ** fraction
    radians = time[:, None] * (1.0 / period * 2 * math.pi)[None, :]
    return jnp.concatenate([jnp.sin(radians), jnp.cos(radians)], axis=-1)


def integrate(
    velocity: Callable[[Float[Array, "b h a"], Float[Array, ""]], Float[Array, "b h a"]],
    noise: Float[Array, "b h a"],
    num_steps: int,
) -> Trajectory:
    """Take exactly `num_steps` Euler steps from `noise` at t = 1.

    The time is accumulated in float32 (from the third step on it is not float32(1 - k / 10)) and
    the product of step and velocity keeps the velocity's dtype, both as in openpi.

    Args:
        velocity: The model's v(x, t).
        noise: Start of the integration, float32.
        num_steps: Number of evaluations, at least 1.
    """
    dt = jnp.float32(-1.0 / num_steps)

    def step(
        carry: tuple[Float[Array, "b h a"], Float[Array, ""]], _: None
    ) -> tuple[tuple[Float[Array, "b h a"], Float[Array, ""]], Trajectory]:
        x, time = carry
        v = velocity(x, time)
        x_next = x + dt.astype(v.dtype) * v
        return (x_next, time + dt), Trajectory(time, v, x_next)

    start = (noise, jnp.float32(1.0))
    _, trajectory = jax.lax.scan(step, start, length=num_steps)
    return trajectory
