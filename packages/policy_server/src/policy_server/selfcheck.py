"""The self-check of a start: fixed requests, asked twice in two orders, as one hash.

The hash is a function of arm, checkpoint, software and device, so two servers that should be
interchangeable can be compared from outside.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from policy_server.errors import CheckpointError
from policy_server.policy import LoadedPolicy
from policy_server.robots import RobotSpec, layout_width

IMAGE_HEIGHT, IMAGE_WIDTH = 240, 320  # not the model's size, so that the resize is checked too


@dataclasses.dataclass(frozen=True)
class SelfCheck:
    """What the fixed requests showed.

    Attributes:
        sha256: Of the bits of all answers, in the order of the requests.
        repeats: Whether each request got the same bits both times.
    """

    sha256: str
    repeats: bool


def run_selfcheck(loaded: LoadedPolicy) -> SelfCheck:
    """Compile every program that the robot can reach, and answer its fixed requests twice.

    The second round goes backwards, so each answer follows another one than the first time, and the
    last request is repeated at once.

    Raises:
        CheckpointError: Actions are not finite.
    """
    path = loaded.request_path
    requests = fixed_requests(path.robot)
    noises = [
        np.random.default_rng(seed)
        .standard_normal((path.action_horizon, path.action_dim))
        .astype(np.float32)
        for seed in range(len(requests))
    ]

    def answer(index: int) -> bytes:
        actions = loaded.policy.infer(requests[index], noises[index]).actions
        if not np.isfinite(actions).all():
            raise CheckpointError(
                "the checkpoint gives actions that are not finite; its weights or norm stats are "
                "damaged, so give others with --policy.dir or in the table of arms."
            )
        return np.ascontiguousarray(actions, dtype="<f8").tobytes()

    order = range(len(requests))
    first = [answer(index) for index in order]
    second = [answer(index) for index in reversed(order)][::-1]
    return SelfCheck(sha256=hashlib.sha256(b"".join(first)).hexdigest(), repeats=first == second)


def fixed_requests(robot: RobotSpec) -> Sequence[Mapping[str, Any]]:
    """One request for each set of optional cameras that may be absent, at least two in all."""
    optional = [camera.key for camera in robot.cameras if not camera.required]
    absent = [
        keys for n in range(len(optional) + 1) for keys in itertools.combinations(optional, n)
    ]
    while len(absent) < 2:
        absent.append(absent[0])
    return [make_request(robot, seed=seed, absent=keys) for seed, keys in enumerate(absent)]


def make_request(robot: RobotSpec, *, seed: int, absent: Sequence[str] = ()) -> dict[str, Any]:
    """A request of noise images and a random state in [-1, 1), of the robot's keys and shapes.

    Args:
        robot: Names the keys.
        seed: Decides every number of it.
        absent: Optional cameras that send nothing.
    """
    rng = np.random.default_rng(seed)
    images = {}
    for camera in robot.cameras:
        image = rng.integers(0, 256, (IMAGE_HEIGHT, IMAGE_WIDTH, 3), np.uint8)
        if camera.key not in absent:
            images[camera.key] = image.transpose(2, 0, 1) if robot.channels_first else image
    states = {
        state.key: rng.uniform(-1.0, 1.0, layout_width(state.layout))
        for state in robot.state_inputs
    }
    nested = images if robot.images_key is None else {robot.images_key: images}
    return {**nested, **states, "prompt": f"self-check {seed}"}
