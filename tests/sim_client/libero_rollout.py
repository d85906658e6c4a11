"""Drives a LIBERO task for the tests and digests all that a policy or a result could see.

Run as a script it prints the digests of the episodes named on its command line, after the task.
"""

import hashlib
import json
import sys

import numpy as np

from sim_client.envs.libero import LiberoEnv
from sim_client.robots import LIBERO_ACTION

N_STEPS = 6
TASK = "libero_spatial/4"  # random fixtures and an open drawer: all of LIBERO's hidden state


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def seeded_actions(n_steps=N_STEPS):
    return np.random.default_rng(99).uniform(-1.0, 1.0, (n_steps, 7))


def action(**parts):
    """An action of zeros but for the parts named, in the robot's layout."""
    unknown = set(parts) - {name for name, _ in LIBERO_ACTION}
    assert not unknown
    return np.concatenate(
        [np.broadcast_to(parts.get(name, 0.0), width) for name, width in LIBERO_ACTION]
    ).astype(float)


def snapshot(env):
    seen = env.observe()
    images = {key: sha256(image) for key, image in seen.images.items()}
    return {
        "physics": sha256(env.physics_state()),
        "state": sha256(seen.state),
        "video": sha256(env.video_frame()),
        **images,
    }


def rollout(env, ep_id):
    """The episode's scene and its digests after the reset and after the last step."""
    env.reset(ep_id)
    start = snapshot(env)
    for each in seeded_actions():
        env.step(each)
    return {"scene": env.scene(), "start": start, "end": snapshot(env)}


def main():
    task, *ep_ids = sys.argv[1:]
    env = LiberoEnv(task)
    for ep_id in map(int, ep_ids):
        sys.stdout.write(json.dumps(rollout(env, ep_id)) + "\n")
    env.close()


if __name__ == "__main__":
    main()
