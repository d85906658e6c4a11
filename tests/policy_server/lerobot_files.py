"""Writes small LeRobot datasets of PandaOmron, in the order of RoboCasa's own."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# robocasa models/assets/groot_dataset_assets/PandaOmron_modality.json (be22d659)
STATE_PARTS = {
    "base_position": (0, 3),
    "base_rotation": (3, 7),
    "end_effector_position_relative": (7, 10),
    "end_effector_rotation_relative": (10, 14),
    "gripper_qpos": (14, 16),
}
ACTION_PARTS = {
    "base_motion": (0, 4),
    "control_mode": (4, 5),
    "end_effector_position": (5, 8),
    "end_effector_rotation": (8, 11),
    "gripper_close": (11, 12),
}

# where RoboCasa's fork of openpi takes the policy's numbers from
STATE_ORDER = [7, 8, 9, 10, 11, 12, 13, 0, 1, 2, 3, 4, 5, 6, 14, 15]
ACTION_ORDER = [5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4]


def modality() -> dict[str, Any]:
    """The dataset's own meta/modality.json."""
    sections = (("state", "observation.state", STATE_PARTS), ("action", "action", ACTION_PARTS))
    return {
        section: {
            name: {"original_key": column, "start": start, "end": end}
            for name, (start, end) in parts.items()
        }
        for section, column, parts in sections
    }


@dataclasses.dataclass(frozen=True, eq=False)
class Frames:
    """The numbers of a dataset in its own order, by episode."""

    states: list[np.ndarray]
    actions: list[np.ndarray]

    def fields(self) -> dict[str, np.ndarray]:
        """All frames as float64, in the policy's order."""
        return {
            "state": np.concatenate(self.states).astype(np.float64)[:, STATE_ORDER],
            "actions": np.concatenate(self.actions).astype(np.float64)[:, ACTION_ORDER],
        }


def make_frames(dtype: type = np.float32, n_episodes: int = 5) -> Frames:
    """Seeded frames: every column with its own offset and scale, ties, one constant of each."""
    rng = np.random.default_rng(7)
    frames = Frames([], [])
    for n_frames in rng.integers(20, 60, n_episodes):
        state = rng.normal(np.arange(16) - 8, np.logspace(-2, 1, 16), (n_frames, 16))
        state[:, 2] = 0.7
        action = np.clip(rng.normal(0, 1, (n_frames, 12)), -1, 1)
        action[:, 3] = 0
        action[:, 4] = rng.choice([-1, 1], n_frames)
        frames.states.append(state.astype(dtype))
        frames.actions.append(action.astype(dtype))
    return frames


def write_dataset(
    directory: Path, frames: Frames, *, version: str = "v2.1", fixed: bool = False
) -> Path:
    """Write the dataset's data and description; gives its directory.

    Args:
        directory: Where to write.
        frames: What to write.
        version: Of LeRobot's layout: v2.x or v3.x.
        fixed: Whether the lists are of parquet's fixed size.
    """
    tables = [
        pa.table({"observation.state": to_lists(state, fixed), "action": to_lists(action, fixed)})
        for state, action in zip(frames.states, frames.actions, strict=True)
    ]
    chunk = directory / "data" / "chunk-000"
    chunk.mkdir(parents=True)
    if version.startswith("v3"):
        pq.write_table(pa.concat_tables(tables[:2]), chunk / "file-000.parquet", row_group_size=13)
        pq.write_table(pa.concat_tables(tables[2:]), chunk / "file-001.parquet")
    else:
        for index, table in enumerate(tables):
            pq.write_table(table, chunk / f"episode_{index:06d}.parquet")
    n_frames = sum(map(len, frames.states))
    info = {"codebase_version": version, "total_frames": n_frames}
    write_meta(directory, "info.json", info)
    write_meta(directory, "modality.json", modality())
    return directory


def to_lists(rows: np.ndarray, fixed: bool = False) -> pa.Array:
    """A column of one list a row."""
    item = pa.from_numpy_dtype(rows.dtype)
    return pa.array(list(rows), pa.list_(item, rows.shape[1]) if fixed else pa.list_(item))


def write_meta(directory: Path, name: str, document: Any) -> Path:
    """Write a file of the dataset's `meta`."""
    path = directory / "meta" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def dataset_stats(frames: Frames, *, quantiles: bool = True) -> dict[str, Any]:
    """The dataset's own meta/stats.json, in its own order and with LeRobot's other statistics."""
    return {
        "observation.state": _column_stats(np.concatenate(frames.states), quantiles),
        "action": _column_stats(np.concatenate(frames.actions), quantiles),
        "timestamp": {"mean": [1.0], "std": [0.5], "min": [0.0], "max": [2.0]},
    }


def _column_stats(rows: np.ndarray, quantiles: bool) -> dict[str, Any]:
    rows = rows.astype(np.float64)
    low, high = np.quantile(rows, (0.01, 0.99), axis=0)
    stats: dict[str, Any] = {
        "mean": rows.mean(axis=0).tolist(),
        "std": [0.0 if np.ptp(column) == 0 else column.std() for column in rows.T],
        "min": rows.min(axis=0).tolist(),
        "max": rows.max(axis=0).tolist(),
    }
    return {**stats, "q01": low.tolist(), "q99": high.tolist()} if quantiles else stats
