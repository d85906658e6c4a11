"""An arm of the golden tiny model: a table of arms, norm stats, all that a start needs."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from golden_data import COMPACT
from policy_server.config import PolicyOptions

CHECKPOINT = COMPACT / "ckpt_dummy_plain_bf16"
TOKENIZER = COMPACT / "tokenizer" / "tiny_paligemma_like.model"
RECORDED = COMPACT / "e2e_pi05_robocasa.npz"

ROW: dict[str, Any] = {
    "checkpoint": str(CHECKPOINT),
    "params": "any",
    "model": "any",
    "norm_mode": "quantile",
    "norm_stats": "mine/norm_stats.json",
    "action_horizon": 50,
    "robot": "panda_omron",
    "state_padding": "before_normalization",
    "tokenizer": str(TOKENIZER),
}


def write_arms(folder: Path, **changes: Any) -> Path:
    """Write a table with the one arm `mine` and the recorded norm stats; gives the table's path.

    Args:
        folder: Where to write.
        changes: Keys of the row, None to leave one out.
    """
    write_norm_stats(folder / "mine" / "norm_stats.json")
    row = {key: value for key, value in {**ROW, **changes}.items() if value is not None}
    lines = [f"{key} = {json.dumps(value)}" for key, value in row.items()]
    table = folder / "arms.toml"
    table.write_text("\n".join(["[arms.mine]", *lines]) + "\n")
    return table


def write_norm_stats(path: Path, scale: float = 1.0) -> None:
    """Write the stats that the recorded requests were answered with, all multiplied by `scale`."""
    prefix = "pad_before_stats32/stats"
    with np.load(RECORDED) as recorded:
        fields = {
            field: {
                key: (recorded[f"{prefix}/{field}/{key}"] * scale).tolist()
                for key in ("mean", "std", "q01", "q99")
            }
            for field in ("state", "actions")
        }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"norm_stats": fields}))


def options(table: Path, **changes: Any) -> PolicyOptions:
    """The command line `--policy.arm mine --policy.arms-file TABLE` and what `changes` add."""
    return dataclasses.replace(PolicyOptions(arm="mine", arms_file=table), **changes)
