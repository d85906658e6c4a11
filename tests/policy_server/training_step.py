"""Training steps as openpi writes them, with `train_state` beside `params`, of a tiny model."""

import json
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from policy_server.checkpoint_write import random_params, write_params
from policy_server.checkpoints import digest
from policy_server.model.config import TINY

ASSETS = Path("assets") / "mine" / "norm_stats.json"


def tiny_weights(seed: int) -> dict[str, np.ndarray]:
    return dict(random_params(TINY, seed=seed, dtype="float32"))


def write_step(folder: Path, *, raw: dict[str, np.ndarray] | None) -> Path:
    """Write a step whose `params` are the weights of seed 0, with assets.

    Args:
        folder: Where the step's directory is made.
        raw: The raw weights of a run that kept an average, None for one that kept none.
    """
    step = folder / "run" / "100"
    write_params(step, tiny_weights(0).items())
    (step / ASSETS).parent.mkdir(parents=True)
    (step / ASSETS).write_text(json.dumps({"norm_stats": {}}))
    moments = {"mu": {"kernel": {"value": np.zeros((2, 2), np.float32)}}}
    state = {
        "step": np.array(101),
        "params": _nest(raw or {}),
        "opt_state": {"1": moments},
        "ema_params": None,
    }
    # Each array in a folder of its own, so that a test can take some away.
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(step / "train_state", args=ocp.args.PyTreeSave(state))
    return step


def _nest(flat: dict[str, np.ndarray]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        node = tree
        for part in path.split("/"):
            node = node.setdefault(part, {})
        node["value"] = leaf
    return tree


class LiveLeaves:
    """Counts how many of the leaves that pass through it exist at the same time."""

    def __init__(self) -> None:
        self.peak = 0
        self._now = 0

    def watch(self, leaves: Iterable[tuple[str, np.ndarray]]) -> Iterator[tuple[str, np.ndarray]]:
        for path, leaf in leaves:
            self._now += 1
            self.peak = max(self.peak, self._now)
            weakref.finalize(leaf, self._drop)
            yield path, leaf
            del leaf

    def _drop(self) -> None:
        self._now -= 1


RAW_DIGEST = digest(tiny_weights(1))
AVERAGE_DIGEST = digest(tiny_weights(0))
