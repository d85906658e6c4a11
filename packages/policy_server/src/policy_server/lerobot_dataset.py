"""Streams the states and actions of a LeRobot dataset, never more than a batch of them in memory.

Layouts: v2.x has one parquet file per episode, v3.x files of many episodes. Videos are not read.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float64

from policy_server.dataset_order import ACTION_COLUMN, STATE_COLUMN, DatasetOrder, read_order
from policy_server.errors import DatasetError
from policy_server.robots import RobotSpec

BATCH_FRAMES = 65536  # 15 MB of a robot with 28 numbers a frame

_FILES = {"v2.": "data/chunk-*/episode_*.parquet", "v3.": "data/chunk-*/file-*.parquet"}


@dataclasses.dataclass(frozen=True)
class LeRobotDataset:
    """A dataset on disk.

    Attributes:
        directory: The one that holds `meta` and `data`.
        files: Its parquet files.
        n_frames: Frames in all of them, by meta/info.json.
        order: Where it holds the robot's numbers.
    """

    directory: Path
    files: tuple[Path, ...]
    n_frames: int
    order: DatasetOrder

    @property
    def state_width(self) -> int:
        """Numbers in the state."""
        return len(self.order.state)

    def batches(self) -> Iterator[Float64[np.ndarray, "n d"]]:
        """Frames in the robot's order, shape (n, d): the state's numbers, then the action's.

        Raises:
            DatasetError: A file is damaged or not downloaded, a column is missing or of another
                shape, a number is NaN, or there are more or fewer frames than meta/info.json says.
        """
        n_read = 0
        for file in self.files:
            for batch in _read_file(file):
                state = _to_matrix(batch.column(0), STATE_COLUMN, len(self.order.state), file)
                actions = _to_matrix(batch.column(1), ACTION_COLUMN, len(self.order.actions), file)
                n_read += len(state)
                yield np.hstack((state[:, self.order.state], actions[:, self.order.actions]))
        if n_read != self.n_frames:
            raise DatasetError(
                f"the dataset {self.directory} holds {n_read} frames and its meta/info.json says "
                f"{self.n_frames}; is it there as a whole?"
            )


def open_dataset(
    directory: Path, robot: RobotSpec, modality_file: Path | None = None
) -> LeRobotDataset:
    """Look at a dataset's description, and read no data yet.

    Args:
        directory: The one that holds `meta` and `data`.
        robot: Whose states and actions it holds.
        modality_file: Names the parts of its vectors, instead of its own meta/modality.json.

    Raises:
        DatasetError: It is no LeRobot dataset of a known layout, has no data, or its order cannot
            be told.
    """
    path = directory / "meta" / "info.json"
    try:
        info = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"{directory} is no LeRobot dataset, since {path} cannot be read; give the directory "
            "that holds `meta` and `data` with --from."
        ) from error
    version, n_frames = (_get(info, key) for key in ("codebase_version", "total_frames"))
    pattern = _FILES.get(str(version)[:3])
    if pattern is None or type(n_frames) is not int or n_frames < 1:
        raise DatasetError(
            f"{path} has codebase_version {version!r} and total_frames {n_frames!r}, expected v2.x "
            "or v3.x and at least one frame."
        )
    files = tuple(sorted(directory.glob(pattern)))
    if not files:
        raise DatasetError(f"the dataset {directory} of {version} has no file {pattern}.")
    order = read_order(modality_file or directory / "meta" / "modality.json", robot)
    return LeRobotDataset(directory, files, n_frames, order)


def _get(document: Any, key: str) -> Any:  # values of JSON, of any type
    return document.get(key) if isinstance(document, dict) else None


def _read_file(file: Path) -> Iterator[pa.RecordBatch]:
    columns = [STATE_COLUMN, ACTION_COLUMN]
    try:
        with pq.ParquetFile(file) as parquet:
            missing = [name for name in columns if name not in parquet.schema_arrow.names]
            if missing:
                raise DatasetError(f"{file} has no column {' and '.join(missing)}.")
            for batch in parquet.iter_batches(BATCH_FRAMES, columns=columns):
                yield batch.select(columns)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise DatasetError(
            f"{file} is damaged or was not downloaded; parquet's reader says: {reason}."
        ) from error


def _to_matrix(column: pa.Array, name: str, width: int, file: Path) -> Float64[np.ndarray, "n d"]:
    kind = column.type
    fixed = pa.types.is_fixed_size_list(kind)
    is_list = fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list or not pa.types.is_floating(kind.value_type):
        raise DatasetError(f"column {name} of {file} holds {kind}, expected lists of floats.")
    values = column.flatten()
    lengths = [kind.list_size] if fixed else column.value_lengths().to_numpy(zero_copy_only=False)
    if column.null_count or values.null_count or not np.array_equal(np.unique(lengths), [width]):
        raise DatasetError(
            f"column {name} of {file} has a frame that is not a list of {width} numbers."
        )
    matrix = values.to_numpy(zero_copy_only=False).astype(np.float64).reshape(-1, width)
    if not np.isfinite(matrix).all():
        frame, number = np.argwhere(~np.isfinite(matrix))[0]
        raise DatasetError(
            f"column {name} of {file} has {matrix[frame, number]} as number {number} of a frame, "
            "expected finite numbers."
        )
    return matrix
