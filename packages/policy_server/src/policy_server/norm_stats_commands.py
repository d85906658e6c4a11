"""The commands about norm stats; none of them needs JAX."""

import hashlib
from pathlib import Path

import numpy as np

from policy_server.config import (
    NormStatsCommand,
    NormStatsCompute,
    NormStatsImport,
    NormStatsInspect,
)
from policy_server.errors import ConfigError, NormStatsError
from policy_server.norm_stats import FIELDS, FieldStats, NormMode
from policy_server.norm_stats_file import encode_norm_stats, load_norm_stats
from policy_server.norm_stats_import import constant_numbers, import_norm_stats, replace_file
from policy_server.robots import ROBOTS
from policy_server.terminal import say


def run(command: NormStatsCommand) -> None:
    """Run one of them.

    Raises:
        PolicyServerError: With a sentence for the user.
    """
    match command:
        case NormStatsImport():
            _import(command)
        case NormStatsInspect():
            _inspect(command.file)
        case NormStatsCompute():
            _compute(command)


def _import(command: NormStatsImport) -> None:
    done = import_norm_stats(command)
    for change in done.changes:
        say(change)
    say(f"{done.file} sha256 {done.sha256}")
    say(f"arm {command.arm} is pinned to it in {command.arms_file}")
    for arm in done.sharing:
        say(f"arm {arm} names this file too and is not pinned to it: import it with --arm {arm}")


def _inspect(file: Path) -> None:
    """Print the digest, and of each signal what its numbers are good for."""
    stats = load_norm_stats(file)
    say(f"sha256 {stats.sha256}")
    spreads: dict[NormMode, str] = {"zscore": "std is 0"}
    if all(getattr(stats, name).q01 is not None for name in FIELDS):
        spreads["quantile"] = "q01 equals q99"
    say(f"norm_mode {' or '.join(spreads)}")
    used = {name: _used_width(getattr(stats, name)) for name in FIELDS}
    for name in FIELDS:
        field: FieldStats = getattr(stats, name)
        say(f"{name}: {field.width} numbers, {', '.join(field.arrays())}")
        if used[name] < field.width:
            say(f"{name}: {used[name]} to {field.width - 1} look like padding (mean 0, std 1)")
    for mode, what in spreads.items():
        for name, numbers in constant_numbers(stats, mode, used).items():
            if numbers:
                say(f"{name}: {what} in {', '.join(map(str, numbers))}")


def _used_width(field: FieldStats) -> int:
    """Numbers before the padding, which has mean 0, std 1 and, if any, quantiles of 0."""
    padded = (field.mean == 0) & (field.std == 1)
    if field.q01 is not None and field.q99 is not None:
        padded &= (field.q01 == 0) & (field.q99 == 0)
    used = np.flatnonzero(~padded)
    return int(used[-1]) + 1 if used.size else 0


def _compute(command: NormStatsCompute) -> None:
    # these import pyarrow, which no other command needs
    from policy_server.lerobot_dataset import open_dataset
    from policy_server.norm_stats_compute import compute_field_stats, pad_field

    if command.out.exists():
        raise NormStatsError(f"--out {command.out} exists; choose another file or remove it.")
    robot = ROBOTS[command.robot]
    if command.action_dim < max(robot.state_width, robot.action_width):
        raise NormStatsError(
            f"--action-dim {command.action_dim} is less than the {robot.state_width} numbers of "
            f"the state or the {robot.action_width} of an action of {robot.name!r}."
        )
    dataset = open_dataset(command.from_, robot, command.modality)
    say(f"{dataset.n_frames} frames in {len(dataset.files)} files, read five times")
    state, actions = compute_field_stats(dataset)
    if command.state_padding == "before_normalization":
        say(f"padded to {command.action_dim} numbers: mean, q01 and q99 are 0, std is 1")
        state, actions = (pad_field(field, command.action_dim) for field in (state, actions))
    content = encode_norm_stats(state, actions)
    try:
        replace_file(command.out, content)
    except OSError as error:
        raise ConfigError(f"--out {command.out} cannot be written ({error.strerror}).") from error
    say(f"{command.out} sha256 {hashlib.sha256(content).hexdigest()}")
