"""Brings an arm's norm stats in: checks that they may be the arm's, writes them, pins the row.

The source is openpi's norm_stats.json, kept byte for byte, or the stats of a LeRobot dataset, which
are put into the policy's order and padded as RoboCasa's fork of openpi does
(src/openpi/training/config.py of robocasa-benchmark/openpi).
"""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from policy_server.arms import Arm, get_arm, load_arms
from policy_server.arms_edit import set_in_row
from policy_server.config import NormStatsImport
from policy_server.dataset_order import ACTION_COLUMN, STATE_COLUMN, read_order
from policy_server.errors import ConfigError, NormStatsError
from policy_server.norm_stats import (
    EPS,
    FIELDS,
    MOMENTS,
    QUANTILES,
    FieldStats,
    NormMode,
    NormStats,
)
from policy_server.norm_stats_file import encode_norm_stats, parse_field, parse_norm_stats
from policy_server.plan import refuse_assets
from policy_server.request_path import check_fit, fit_norm_stats
from policy_server.robots import ROBOTS

FLAG = "--from"


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """Where stats come from, and what becomes of them.

    Attributes:
        file: The file that holds them.
        sha256: Of that file's bytes.
        asset: Name of the stats there.
        content: The norm_stats.json to write.
        changes: What was done to the numbers, one sentence each.
        origin: What the dataset says of itself.
    """

    file: Path
    sha256: str
    asset: str
    content: bytes
    changes: tuple[str, ...]
    origin: str = ""


@dataclasses.dataclass(frozen=True)
class Imported:
    """What an import did.

    Attributes:
        file: The norm stats of the arm.
        sha256: Their digest, now the row's pin.
        changes: What was done to the numbers, one sentence each.
        sharing: Other arms that name the same file and are not pinned to it.
    """

    file: Path
    sha256: str
    changes: tuple[str, ...]
    sharing: tuple[str, ...]


def import_norm_stats(command: NormStatsImport) -> Imported:
    """Write an arm's norm stats and their SOURCE.md where its row says, and pin the row.

    Raises:
        ConfigError: The arm does not exist; the stats cannot be read, are of a refused asset, do
            not fit the arm or have a constant number that was not allowed; other stats are there
            already; or the table cannot be edited. Nothing was changed then, except that stats
            may lie there unpinned after the last.
    """
    arms = load_arms(command.arms_file)
    row = get_arm(command.arm, arms, command.arms_file)
    source = _read_source(command, row)
    sha256 = hashlib.sha256(source.content).hexdigest()
    target = command.arms_file.parent / row.norm_stats
    names = (source.asset, source.sha256, sha256, source.origin, str(target))
    refuse_assets(row, source.file, *names)
    stats = _fit(parse_norm_stats(source.content, str(source.file)), row)
    changes = (*source.changes, *(f"at every start: {note}" for note in stats.notes))
    _check_constants(stats, row, command.allow_constant)
    others = [arm for arm in arms.values() if arm.norm_stats == row.norm_stats and arm != row]
    note = _describe(command, source, sha256, changes)
    _write(target, source.content, note, replace=command.replace)
    set_in_row(command.arms_file, row.name, {"norm_stats_sha256": sha256})
    sharing = tuple(arm.name for arm in others if arm.norm_stats_sha256 != sha256)
    return Imported(target, sha256, changes, sharing)


def constant_numbers(
    stats: NormStats, mode: NormMode, widths: dict[str, int]
) -> dict[str, list[int]]:
    """The numbers that normalisation would divide by about EPS, by signal.

    Args:
        stats: With quantiles, if the mode is of them.
        mode: Which way to normalise.
        widths: How many numbers of each signal are the robot's; the rest is padding.
    """
    constant = {}
    for name, width in widths.items():
        field: FieldStats = getattr(stats, name)
        spread = field.std if mode == "zscore" else np.subtract(*reversed(field.quantiles()))
        constant[name] = np.flatnonzero(spread[:width] < EPS).tolist()
    return constant


def _read_source(command: NormStatsImport, row: Arm) -> Source:
    given = command.from_
    file = given / "meta" / "stats.json" if given.is_dir() else given
    try:
        content = file.read_bytes()
        document = json.loads(content)
    except OSError as error:
        raise NormStatsError(
            f"the norm stats {file} cannot be read ({error.strerror}); give openpi's "
            f"norm_stats.json, or a LeRobot dataset, with {FLAG}."
        ) from error
    except ValueError as error:
        raise NormStatsError(f"the norm stats {file} are not JSON: {error}.") from error
    sha256 = hashlib.sha256(content).hexdigest()
    if isinstance(document, dict) and {STATE_COLUMN, ACTION_COLUMN} <= document.keys():
        return _from_dataset(command, row, file, document=document, sha256=sha256)
    if command.modality is not None:
        raise NormStatsError(
            f"--modality is for the stats of a dataset, and {file} does not hold {STATE_COLUMN!r} "
            f"and {ACTION_COLUMN!r}; openpi's file is in the policy's order already."
        )
    parse_norm_stats(content, str(file))
    unchanged = ("openpi's file, kept byte for byte",)
    return Source(file, sha256, command.asset or file.parent.name, content, unchanged)


def _from_dataset(
    command: NormStatsImport, row: Arm, file: Path, *, document: dict[str, Any], sha256: str
) -> Source:
    """The stats of a dataset in the order of the arm's robot, padded if the arm's training did."""
    directory = file.resolve().parent.parent
    order = read_order(command.modality or file.parent / "modality.json", ROBOTS[row.robot])
    try:
        state = _permuted(document, STATE_COLUMN, order.state)
        actions = _permuted(document, ACTION_COLUMN, order.actions)
    except NormStatsError as error:
        raise NormStatsError(f"the dataset's stats {file}: {error}.") from error
    fitted = _fit(NormStats(state, actions, sha256=sha256, source=str(file)), row)
    changes = (
        f"state in the policy's order: numbers {_spell(order.state)} of the dataset's",
        f"actions in the policy's order: numbers {_spell(order.actions)} of the dataset's",
        *fitted.notes,
    )
    if fitted.notes and state.q01 is not None:
        changes = (*changes, "the dataset's q01 and q99 left out: nothing says how to pad them")
    origin = directory / "SOURCE.md"
    return Source(
        file=file,
        sha256=sha256,
        asset=command.asset or directory.name,
        content=encode_norm_stats(fitted.state, fitted.actions),
        changes=changes,
        origin=origin.read_text(errors="replace") if origin.is_file() else "",
    )


def _permuted(document: dict[str, Any], column: str, order: tuple[int, ...]) -> FieldStats:
    entry = document[column]
    if isinstance(entry, dict):  # LeRobot's other statistics are not for normalising
        entry = {key: entry.get(key) for key in (*MOMENTS, *QUANTILES)}
    field = parse_field(column, entry)
    if field.width != len(order):
        raise NormStatsError(
            f"{column!r} has {field.width} numbers, its modality file names {len(order)}"
        )
    return FieldStats(**{key: values[list(order)] for key, values in field.arrays().items()})


def _spell(order: tuple[int, ...]) -> str:
    return " ".join(map(str, order))


def _fit(stats: NormStats, row: Arm) -> NormStats:
    """What a start makes of stats, or a sentence why it would refuse them."""
    robot = ROBOTS[row.robot]
    fitted = fit_norm_stats(
        stats,
        robot=robot,
        norm_mode=row.norm_mode,
        state_padding=row.state_padding,
        action_dim=row.action_dim,
    )
    check_fit(
        fitted,
        robot=robot,
        norm_mode=row.norm_mode,
        state_padding=row.state_padding,
        action_dim=row.action_dim,
        flag=FLAG,
    )
    return fitted


def _check_constants(stats: NormStats, row: Arm, allowed: tuple[str, ...]) -> None:
    """Refuse a number that never changed in the training, unless the user knows of it.

    Its normalised value is its distance from the constant in units of EPS: one millimetre is 1000.
    """
    robot = ROBOTS[row.robot]
    layouts = {"state": robot.state_layout, "actions": robot.action_layout}
    widths = {"state": robot.state_width, "actions": robot.action_width}
    names = {
        signal: [f"{signal}.{part}.{i}" for part, width in layout for i in range(width)]
        for signal, layout in layouts.items()
    }
    constant = constant_numbers(stats, row.norm_mode, widths)
    found = [names[signal][index] for signal in FIELDS for index in constant[signal]]
    what = "std is 0" if row.norm_mode == "zscore" else "q01 equals q99"
    idle = [name for name in allowed if name not in found]
    if idle:
        raise NormStatsError(
            f"--allow-constant {' '.join(idle)} names nothing whose {what} (below {EPS:g}) in "
            f"{stats.source}; its constants are: {' '.join(found) or 'none'}."
        )
    refused = [name for name in found if name not in allowed]
    if refused:
        raise NormStatsError(
            f"{what} (below {EPS:g}) in {stats.source} for {' '.join(refused)}, so the least "
            "movement there becomes huge; if these stood still in the training, add "
            f"--allow-constant {' '.join(found)}."
        )


def _describe(
    command: NormStatsImport, source: Source, sha256: str, changes: tuple[str, ...]
) -> str:
    """The SOURCE.md."""
    lines = [
        f"# {source.asset}",
        "",
        f"Written by `policy-server norm-stats import` for arm `{command.arm}`.",
        "",
        f"- file: `{source.file}`, SHA-256 {source.sha256}",
        f"- asset: {source.asset}",
        f"- norm_stats.json: SHA-256 {sha256}",
        *(f"- {change}" for change in changes),
    ]
    if command.allow_constant:
        lines.append(f"- constant in the training, allowed: {' '.join(command.allow_constant)}")
    return "\n".join(lines) + "\n"


def _write(target: Path, content: bytes, note: str, *, replace: bool) -> None:
    """Write both files, each in one step; equal stats keep the note that is there."""
    note_file = target.parent / "SOURCE.md"
    same = target.is_file() and target.read_bytes() == content
    taken = not same and (target.exists() or note_file.exists())
    if taken and not replace:
        raise NormStatsError(
            f"{target.parent} holds other norm stats or their SOURCE.md already; add --replace to "
            "put these in their place."
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not same:
            replace_file(target, content)
        if not same or not note_file.exists():
            replace_file(note_file, note.encode())
    except OSError as error:
        raise ConfigError(f"{target.parent} cannot be written ({error.strerror}).") from error


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that it is there as a whole or as it was before."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(content)
    new.replace(path)
