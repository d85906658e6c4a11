"""Computes the demo arms' norm stats from seeded random motion of the robot in Lift.

Until the policy is trained there are no demonstrations whose statistics could be taken; these
are the statistics of states and actions that the same robot really had. The same command gives the
same file (for the same simulator versions).

    ./eval.sh --help                                    makes .venv-client
    MUJOCO_GL=egl PYOPENGL_PLATFORM=egl \
        .venv-client/bin/python tools/demo_norm_stats.py norm_stats/demo/norm_stats.json
"""

import json
import sys
from pathlib import Path

import numpy as np
from jaxtyping import Float

from sim_client.envs.robosuite import RobosuiteEnv

N_EPISODES = 12
FIRST_EP_ID = 1_000_000  # far from the episodes of any evaluation
STEPS = 60
STATE_EVERY = 3
WIDTH = 32  # RoboCasa's fork pads states and actions to the model's width before it normalises
BASE_SHARE = 0.2  # of the steps that move the base instead of the end effector


def random_action(rng: np.random.Generator) -> Float[np.ndarray, " 12"]:
    """One action in the policy's order: end effector 6, gripper 1, base and torso 4, mode 1."""
    action = np.zeros(12)
    moves_base = rng.random() < BASE_SHARE
    if moves_base:
        action[7:11] = rng.uniform(-1, 1, 4)
    else:
        action[0:6] = rng.uniform(-1, 1, 6)
    action[6] = float(rng.random() < 0.5)
    action[11] = float(moves_base)
    return action


def collect() -> tuple[Float[np.ndarray, "n 16"], Float[np.ndarray, "m 12"]]:
    """States and actions of all episodes."""
    env = RobosuiteEnv("Lift")
    states, actions = [], []
    for ep_id in range(FIRST_EP_ID, FIRST_EP_ID + N_EPISODES):
        rng = np.random.default_rng(ep_id)
        env.reset(ep_id)
        for step in range(STEPS):
            if step % STATE_EVERY == 0:
                states.append(env.observe().state.astype(np.float64))
            action = random_action(rng)
            env.step(action)
            actions.append(action)
    env.close()
    return np.stack(states), np.stack(actions)


def field_stats(rows: Float[np.ndarray, "n d"]) -> dict[str, list[float]]:
    """Mean, standard deviation, 1st and 99th percentile, padded to WIDTH as the fork pads."""
    pad = [0.0] * (WIDTH - rows.shape[1])
    return {
        "mean": rows.mean(axis=0).tolist() + pad,
        "std": rows.std(axis=0).tolist() + [1.0] * len(pad),
        "q01": np.quantile(rows, 0.01, axis=0).tolist() + pad,
        "q99": np.quantile(rows, 0.99, axis=0).tolist() + pad,
    }


def main() -> None:
    """Write openpi's norm_stats.json to the path that is given."""
    states, actions = collect()
    stats = {"norm_stats": {"state": field_stats(states), "actions": field_stats(actions)}}
    Path(sys.argv[1]).write_text(json.dumps(stats, indent=2) + "\n")


if __name__ == "__main__":
    main()
