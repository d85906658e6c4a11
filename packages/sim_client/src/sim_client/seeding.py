"""Where an episode's random numbers come from: its id, the action seed, the query's index."""

import random

import numpy as np
from jaxtyping import Float32

from sim_client.errors import ConfigError

EPISODE_STRIDE = 1_000_003  # keeps the streams of neighbouring episodes apart
_GLOBAL_SEED_LIMIT = 2**32  # numpy's legacy generator takes 32 bits


def episode_noise(
    action_seed: int, ep_id: int, query_idx: int, shape: tuple[int, int]
) -> Float32[np.ndarray, "h a"]:
    """Start noise of one query: the same three numbers give the same noise on every arm.

    Args:
        action_seed: Seed of the run's noise (--args.action_seed).
        ep_id: Id of the episode (--args.env_seed_offset plus the episode's index).
        query_idx: Index of the query within its episode, from 0.
        shape: (action_horizon, action_dim) of the model, not of the robot.

    Returns:
        Standard normal numbers, shape (action_horizon, action_dim), drawn in float64 and rounded
        to float32.

    Raises:
        ConfigError: The three numbers add up to a negative seed.
    """
    seed = action_seed + ep_id * EPISODE_STRIDE + query_idx
    if seed < 0:
        raise ConfigError(
            f"action seed {action_seed} and episode {ep_id} give the negative noise seed {seed}; "
            "use --args.action_seed and --args.env_seed_offset of 0 or more."
        )
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def seed_globals(ep_id: int) -> None:
    """Reseed Python's and NumPy's global generators, which simulators draw from behind our back.

    Raises:
        ConfigError: `ep_id` does not fit NumPy's 32 bits.
    """
    if not 0 <= ep_id < _GLOBAL_SEED_LIMIT:
        raise ConfigError(
            f"episode id {ep_id} is not between 0 and {_GLOBAL_SEED_LIMIT - 1}; "
            "choose another --args.env_seed_offset."
        )
    random.seed(ep_id)
    np.random.seed(ep_id)  # noqa: NPY002  # the global generator is the point
