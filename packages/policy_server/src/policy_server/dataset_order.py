"""In which order a LeRobot dataset holds the robot's numbers, by its own `meta/modality.json`.

RoboCasa's datasets put the base first and its policies the end effector; both are 16 and 12 numbers
wide, so nothing but the names can tell them apart.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from policy_server.errors import DatasetError
from policy_server.robots import Layout, RobotSpec

STATE_COLUMN = "observation.state"
ACTION_COLUMN = "action"

MODALITY_PARTS: Mapping[str, Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        # robocasa models/assets/groot_dataset_assets/PandaOmron_modality.json (be22d659), which
        # its converter copies into every dataset; in that file's order
        "panda_omron": {
            "state": {
                "base_position": "base_position",
                "base_rotation": "base_rotation",
                "end_effector_position_relative": "end_effector_position_relative",
                "end_effector_rotation_relative": "end_effector_rotation_relative",
                "gripper_qpos": "gripper_qpos",
            },
            "action": {
                "base_motion": "base_motion",
                "control_mode": "control_mode",
                "end_effector_position": "end_effector_position",
                "end_effector_rotation": "end_effector_rotation",
                "gripper_close": "gripper_close",
            },
        },
    }
)
"""Robot, section of the modality file, name there, name of the part in the robot's layout."""


@dataclasses.dataclass(frozen=True)
class DatasetOrder:
    """Where a dataset holds each number of the robot's vectors.

    Attributes:
        state: The i-th number of the robot's state is number state[i] of the dataset's.
        actions: The same for actions.
    """

    state: tuple[int, ...]
    actions: tuple[int, ...]


def read_order(path: Path, robot: RobotSpec) -> DatasetOrder:
    """Read a modality file.

    Args:
        path: The dataset's meta/modality.json.
        robot: Whose parts it must name, all of them and no others.

    Raises:
        DatasetError: It cannot be read, or does not say where each part is: names that are missing
            or unknown, other widths, gaps, overlaps, other columns.
    """
    parts = MODALITY_PARTS.get(robot.name)
    if parts is None:
        raise DatasetError(
            f"the part names of {robot.name!r} in datasets are not known, only those of "
            f"{', '.join(MODALITY_PARTS)}; import openpi's norm_stats.json instead."
        )
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise DatasetError(
            f"the order of the dataset's numbers is not known, since {path} cannot be read "
            f"({error.strerror}); give the dataset's modality file with --modality."
        ) from error
    except ValueError as error:
        raise DatasetError(f"the modality file {path} is not JSON: {error}.") from error
    try:
        return DatasetOrder(
            state=_read_section(document, "state", STATE_COLUMN, parts, robot.state_layout),
            actions=_read_section(document, "action", ACTION_COLUMN, parts, robot.action_layout),
        )
    except DatasetError as error:
        raise DatasetError(
            f"the modality file {path} does not tell the order of {robot.name!r}: {error}."
        ) from error


def _read_section(
    document: Any,  # a value of JSON, of any type
    section: str,
    column: str,
    parts: Mapping[str, Mapping[str, str]],
    layout: Layout,
) -> tuple[int, ...]:
    ranges = document.get(section) if isinstance(document, dict) else None
    if not isinstance(ranges, dict):
        raise DatasetError(f"it has no object {section!r}")
    part_of = parts[section]
    for what, names in (
        ("lacks", part_of.keys() - ranges.keys()),
        ("has the unknown", ranges.keys() - part_of.keys()),
    ):
        if names:
            raise DatasetError(f"{section!r} {what} {', '.join(map(repr, sorted(names)))}")
    widths = dict(layout)
    spans = {}
    for name, entry in ranges.items():
        spans[part_of[name]] = _read_span(entry, f"{section}.{name}", column, widths[part_of[name]])
    end = 0
    for start, stop in sorted(spans.values()):
        if start != end:
            raise DatasetError(
                f"{section!r} {'leaves out' if start > end else 'uses twice'} the numbers "
                f"{min(start, end)} to {max(start, end) - 1}"
            )
        end = stop
    return tuple(index for name, _ in layout for index in range(*spans[name]))


def _read_span(entry: Any, name: str, column: str, width: int) -> tuple[int, int]:
    """First index and the one behind the last, checked against the part's width."""
    start, end = (entry.get(key) if isinstance(entry, dict) else None for key in ("start", "end"))
    if type(start) is not int or type(end) is not int or start < 0:
        raise DatasetError(f"{name!r} has no start and end of integers")
    if end - start != width:
        raise DatasetError(f"{name!r} has {end - start} numbers, expected {width}")
    source = entry.get("original_key", column)
    if source != column:
        raise DatasetError(f"{name!r} is of column {source!r}, expected {column!r}")
    return start, end
