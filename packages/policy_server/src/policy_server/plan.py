"""Everything a start can refuse before JAX is imported: arm, files, pins, deviations.

The result is a plan: files that exist and belong to the arm, and what deviates from its row.
"""

import dataclasses
import hashlib
from pathlib import Path
from typing import Literal

from policy_server.arms import Arm, get_arm, load_arms
from policy_server.config import (
    CHECKPOINTS_ROOT_VARIABLE,
    CheckpointExtractRaw,
    CheckpointInit,
    PolicyOptions,
)
from policy_server.errors import CheckpointError, ConfigError, NormStatsError, TokenizerError
from policy_server.params_kind import ParamsKind, find_params_kind
from policy_server.tokenizer import find_tokenizer


@dataclasses.dataclass(frozen=True)
class ServePlan:
    """What will be served.

    Attributes:
        arm: The row, with the overrides that the command line asked for and was allowed.
        checkpoint_dir: The directory that holds `params`.
        norm_stats_path: The stats file.
        tokenizer_path: The SentencePiece model.
        params_kind: Which weights the checkpoint holds, by its directory or else by its pin.
        deviations: How `arm` differs from its row, each as a few words.
    """

    arm: Arm
    checkpoint_dir: Path
    params_kind: ParamsKind
    norm_stats_path: Path
    tokenizer_path: Path
    deviations: tuple[str, ...]


def make_plan(options: PolicyOptions) -> ServePlan:
    """Find the arm and its files, and refuse what its row does not allow.

    Raises:
        ConfigError: One sentence that names the flag, the file or the key of the row to change.
    """
    if options.seed < 0:
        raise ConfigError(f"--policy.seed {options.seed} is negative; give 0 or more.")
    row = get_arm(options.arm, load_arms(options.arms_file), options.arms_file)
    checkpoint_dir = find_checkpoint(row, options.dir, options.checkpoints_root)
    stats_path, stats_sha256 = find_norm_stats(row, options)
    arm, deviations = apply_overrides(row, options, stats_sha256)
    require_pins(row, options, stats_sha256)
    return ServePlan(
        arm=arm,
        checkpoint_dir=checkpoint_dir,
        params_kind=require_params_kind(row, checkpoint_dir),
        norm_stats_path=stats_path,
        tokenizer_path=find_row_tokenizer(row, options, checkpoint_dir),
        deviations=deviations,
    )


def check_out(command: CheckpointInit | CheckpointExtractRaw) -> None:
    """Refuse to write a checkpoint over anything.

    Raises:
        CheckpointError: The directory holds something already, or the seed is negative.
    """
    out = command.out
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise CheckpointError(
            f"--out {out} exists and is not empty; choose another directory or remove it."
        )
    if isinstance(command, CheckpointInit) and command.seed < 0:
        raise CheckpointError(f"--seed {command.seed} is negative; give 0 or more.")


def find_checkpoint(row: Arm, given: Path | None, root: Path, *, prefix: str = "--policy.") -> Path:
    """The directory that was given, else the row's one under the checkpoints' root.

    Args:
        row: The arm.
        given: What the flag `dir` says.
        root: What the flag `checkpoints-root` says.
        prefix: How these flags start.

    Raises:
        CheckpointError: There is none, or it does not exist.
    """
    if given is None and not row.checkpoint:
        raise CheckpointError(
            f"arm {row.name!r} names no checkpoint; give its directory with {prefix}dir."
        )
    directory = given or root / row.checkpoint
    if not directory.is_dir():
        raise CheckpointError(
            f"the checkpoint directory {directory} of arm {row.name!r} does not exist; give it "
            f"with {prefix}dir, or the folder that holds it with {prefix}checkpoints-root or "
            f"${CHECKPOINTS_ROOT_VARIABLE}."
        )
    return directory


def find_norm_stats(row: Arm, options: PolicyOptions) -> tuple[Path, str]:
    """The stats file and its digest; a refused asset stays refused whatever the flags say."""
    path = options.norm_stats or options.arms_file.parent / row.norm_stats
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise NormStatsError(
            f"the norm stats {path} of arm {row.name!r} cannot be read ({error.strerror}); bring "
            f"them in with `policy-server norm-stats import --arm {row.name} --from FILE`, or "
            f"change norm_stats in {options.arms_file}."
        ) from error
    refuse_assets(row, path, digest)
    return path, digest


def refuse_assets(row: Arm, path: Path, *known_as: str) -> None:
    """Refuse stats that an arm must never be served with.

    Args:
        row: The arm.
        path: The stats file; its path, where links lead and the SOURCE.md beside it count.
        known_as: Digests and names of the file.

    Raises:
        NormStatsError: One of these names an asset of the row's refused_assets.
    """
    source = path.parent / "SOURCE.md"
    origin = source.read_text(errors="replace") if source.is_file() else ""
    places = (str(path), str(path.resolve()), origin, *known_as)
    for asset in row.refused_assets:
        if any(asset in place for place in places):
            raise NormStatsError(
                f"the norm stats {path} are those of {asset!r} (by path, digest or SOURCE.md), "
                f"which arm {row.name!r} must never be served with; use the arm's own file."
            )


def apply_overrides(
    row: Arm, options: PolicyOptions, stats_sha256: str
) -> tuple[Arm, tuple[str, ...]]:
    """The arm as it will be served, and what differs from its row."""
    arm, deviations = row, []
    if options.norm_mode not in (None, row.norm_mode):
        arm = dataclasses.replace(arm, norm_mode=options.norm_mode)
        deviations.append(f"norm_mode {options.norm_mode} instead of {row.norm_mode}")
    if options.action_horizon not in (None, row.action_horizon):
        try:
            arm = dataclasses.replace(arm, action_horizon=options.action_horizon)
        except ConfigError as error:
            raise ConfigError(f"--policy.action-horizon: {error}.") from error
        deviations.append(f"action_horizon {arm.action_horizon} instead of {row.action_horizon}")
    if options.norm_stats is not None:
        expected = row.norm_stats_sha256 or _digest_or_none(options.arms_file, row)
        if stats_sha256 != expected:
            deviations.append(f"norm_stats {stats_sha256} instead of {expected or row.norm_stats}")
    if deviations and not options.allow_protocol_deviation:
        raise ConfigError(
            f"arm {row.name!r} would be served with {'; '.join(deviations)}; drop that flag, or "
            "mark every result as deviating with --policy.allow-protocol-deviation."
        )
    return arm, tuple(deviations)


def _digest_or_none(arms_file: Path, row: Arm) -> str | None:
    path = arms_file.parent / row.norm_stats
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def require_pins(row: Arm, options: PolicyOptions, stats_sha256: str) -> None:
    """Refuse an unpinned arm of real weights, and stats that are not the pinned ones."""
    writers = {
        "norm_stats_sha256": f"`policy-server norm-stats import --arm {row.name} --from FILE`",
        "checkpoint_digest": f"`policy-server checkpoint pin --arm {row.name} --params "
        f"{row.params}`",
    }
    missing = [key for key in writers if not getattr(row, key)]
    if row.params != "any" and missing:
        raise ConfigError(
            f'arm {row.name!r} has params = "{row.params}" and is not served unpinned: '
            f"[arms.{row.name}] in {options.arms_file} lacks {' and '.join(missing)}, which "
            f"{' and '.join(writers[key] for key in missing)} write{'s'[len(missing) - 1 :]}."
        )
    pinned = row.norm_stats_sha256
    if options.norm_stats is None and pinned and stats_sha256 != pinned:
        raise NormStatsError(
            f"the norm stats {options.arms_file.parent / row.norm_stats} have SHA-256 "
            f"{stats_sha256}, arm {row.name!r} is pinned to {pinned}; put the pinned file "
            f"there, or correct norm_stats_sha256 in {options.arms_file}."
        )


def require_params_kind(row: Arm, checkpoint_dir: Path) -> ParamsKind:
    """Refuse EMA weights for an arm of raw ones, and the other way round."""
    kind = find_params_kind(checkpoint_dir).kind
    if row.params == "any" or kind == row.params:
        return kind
    if kind == "unknown":
        return row.params  # vouched for by the pin, which `require_pins` demands
    raise wrong_kind(row, kind, row.params, checkpoint_dir, flag="--policy.dir")


def wrong_kind(
    row: Arm, found: ParamsKind, wanted: Literal["raw", "ema"], directory: Path, *, flag: str
) -> CheckpointError:
    """The refusal of a directory that holds the other kind of weights.

    Args:
        row: The arm.
        found: What the directory holds.
        wanted: What it should hold.
        directory: The checkpoint.
        flag: Gives another directory.
    """
    remedy = {
        "raw": "extract its raw weights with `policy-server checkpoint extract-raw "
        f"{directory} --out DIR`",
        "ema": "that run kept no average",
    }[wanted]
    return CheckpointError(
        f"the checkpoint {directory} holds {found} weights and arm {row.name!r} is one of "
        f"{wanted} weights; {remedy}, or give another directory with {flag}."
    )


def find_row_tokenizer(row: Arm, options: PolicyOptions, checkpoint_dir: Path) -> Path:
    """The tokenizer of the flag, of the row or of the usual places; its digest is checked."""
    named = options.tokenizer
    if named is None and row.tokenizer:
        named = options.arms_file.parent / row.tokenizer
    path = find_tokenizer(named, checkpoint_dir)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if row.tokenizer_sha256 and digest != row.tokenizer_sha256:
        raise TokenizerError(
            f"the tokenizer {path} has SHA-256 {digest}, arm {row.name!r} is pinned to "
            f"{row.tokenizer_sha256}; give that file with --policy.tokenizer."
        )
    return path
