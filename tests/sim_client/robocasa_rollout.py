"""Plays seeded actions in a RoboCasa task and digests everything a policy or a result could see.

Run as a script it prints the digests of the episodes named on its command line.
"""

import importlib.util
import json
import sys

import numpy as np
import pytest
from robosuite_rollout import seeded_actions, sha256, snapshot

from sim_client.envs.robocasa import RobocasaEnv
from sim_client.robots import PANDA_OMRON_ACTION

TASK = "PickPlaceCounterToCabinet"
N_STEPS = 10


def require_robocasa():
    """Skip the module that calls this where RoboCasa is not installed."""
    if importlib.util.find_spec("robocasa") is None:
        pytest.skip(
            "RoboCasa is not installed here; run with .venv-robocasa/bin/python after "
            "./eval.sh install robocasa",
            allow_module_level=True,
        )


def action(**parts):
    """An action of zeros but for the parts named, in the robot's layout."""
    unknown = set(parts) - {name for name, _ in PANDA_OMRON_ACTION}
    assert not unknown
    return np.concatenate(
        [np.broadcast_to(parts.get(name, 0.0), width) for name, width in PANDA_OMRON_ACTION]
    ).astype(float)


def rollout(env, ep_id):
    """The episode's scene and its digests after the reset, every step's physics and the end."""
    env.reset(ep_id)
    start = snapshot(env)
    physics = []
    for action in 0.5 * seeded_actions(N_STEPS):
        env.step(action)
        physics.append(sha256(env.physics_state()))
    return {"scene": env.scene(), "start": start, "physics": physics, "end": snapshot(env)}


def main():
    env = RobocasaEnv(TASK)
    for ep_id in map(int, sys.argv[1:]):
        sys.stdout.write(json.dumps(rollout(env, ep_id)) + "\n")
    env.close()


if __name__ == "__main__":
    main()
