"""Drives robosuite's Lift for the tests and digests all that a policy or a result could see.

Run as a script it prints the digests of the episodes named on its command line.
"""

import hashlib
import json
import sys

import numpy as np

from sim_client.envs.robosuite import RobosuiteEnv
from sim_client.robots import PANDA_OMRON_ACTION, PANDA_OMRON_STATE

N_STEPS = 12


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def seeded_actions(n_steps):
    return np.random.default_rng(99).uniform(-1.0, 1.0, (n_steps, 12))


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
    for action in seeded_actions(N_STEPS):
        env.step(action)
    return {"scene": env.scene(), "start": start, "end": snapshot(env)}


def action(**parts):
    """An action of zeros but for the parts named, in the robot's layout."""
    unknown = set(parts) - {name for name, _ in PANDA_OMRON_ACTION}
    assert not unknown
    return np.concatenate(
        [np.broadcast_to(parts.get(name, 0.0), width) for name, width in PANDA_OMRON_ACTION]
    ).astype(float)


def state_parts(env):
    """The state by part, without the images that `observe` would draw."""
    ends = np.cumsum([width for _, width in PANDA_OMRON_STATE])
    values = np.split(env._state(), ends[:-1])
    return {name: value for (name, _), value in zip(PANDA_OMRON_STATE, values, strict=True)}


def main():
    env = RobosuiteEnv()
    for ep_id in map(int, sys.argv[1:]):
        sys.stdout.write(json.dumps(rollout(env, ep_id)) + "\n")
    env.close()


if __name__ == "__main__":
    main()
