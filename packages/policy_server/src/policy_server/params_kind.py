"""Whether a checkpoint's `params` are raw or averaged (EMA) weights, as far as the directory tells.

openpi's training writes `params` and `train_state` side by side. With EMA, `params` holds the
averaged weights and `train_state/params` the raw ones; without, `params` holds the raw ones and
`train_state/params` is empty (openpi src/openpi/training/checkpoints.py, 15a9616). A directory
without a `train_state`, such as a released checkpoint, tells nothing, unless `checkpoint
extract-raw` wrote it and left its mark.
"""

import dataclasses
import json
from pathlib import Path
from typing import Literal

from policy_server.errors import CheckpointError

ParamsKind = Literal["raw", "ema", "unknown"]

MARKER_FILE = "params_kind.json"  # beside `params`
_TREE_FILE = "_METADATA"  # orbax's list of leaves


@dataclasses.dataclass(frozen=True)
class FoundKind:
    """What a directory tells.

    Attributes:
        kind: Which weights `params` holds.
        why: How that is known, or why it is not.
        marked_digest: Digest of the weights that a mark vouches for, None without one.
    """

    kind: ParamsKind
    why: str
    marked_digest: str | None = None

    def check_digest(self, found: str) -> None:
        """Refuse a mark that was made for other weights than those beside it.

        Args:
            found: Digest of the weights.

        Raises:
            CheckpointError: They are others.
        """
        if self.marked_digest not in (None, found):
            raise CheckpointError(
                f"the weights have digest {found}, the mark beside them ({MARKER_FILE}) is that of "
                f"{self.marked_digest}; remove it, or extract the weights again with "
                "`policy-server checkpoint extract-raw`."
            )


def find_params_kind(checkpoint_dir: Path) -> FoundKind:
    """Read which weights `params` holds, from the `train_state` beside it or else from a mark.

    Args:
        checkpoint_dir: The directory that holds `params`, or `params` itself.

    Raises:
        CheckpointError: There is a `train_state` whose list of leaves cannot be read, or a mark.
    """
    step_dir = find_step_dir(checkpoint_dir)
    tree_file = step_dir / "train_state" / _TREE_FILE
    if not tree_file.is_file():
        return _read_marker(step_dir / MARKER_FILE)
    try:
        leaves = json.loads(tree_file.read_text())["tree_metadata"].values()
        paths = [[part["key"] for part in leaf["key_metadata"]] for leaf in leaves]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{tree_file} cannot be read, so it is unknown whether the checkpoint holds raw or EMA "
            "weights; copy the checkpoint again."
        ) from error
    if any(path[0] == "params" and len(path) > 1 for path in paths):
        return FoundKind(
            "ema", "train_state beside params holds the raw weights, so params are the average"
        )
    return FoundKind("raw", "train_state beside params holds no weights, so no average was kept")


def find_step_dir(checkpoint_dir: Path) -> Path:
    """The directory that holds `params`, of itself or of its `params`."""
    return checkpoint_dir.parent if checkpoint_dir.name == "params" else checkpoint_dir


def write_marker(step_dir: Path, *, origin: Path, digest: str) -> None:
    """Leave the mark of raw weights that were extracted.

    Args:
        step_dir: The directory that holds `params`.
        origin: The `train_state` that they come from.
        digest: Their identity.
    """
    marker = {"params": "raw", "origin": str(origin), "checkpoint_digest": digest}
    (step_dir / MARKER_FILE).write_text(json.dumps(marker, indent=2) + "\n")


def _read_marker(path: Path) -> FoundKind:
    if not path.is_file():
        return FoundKind(
            "unknown", "there is neither a train_state beside params nor a mark of extract-raw"
        )
    try:
        marker = json.loads(path.read_text())
        kind, origin, digest = (marker[key] for key in ("params", "origin", "checkpoint_digest"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"the mark {path} cannot be read, so it is unknown whether the checkpoint holds raw or "
            "EMA weights; extract it again with `policy-server checkpoint extract-raw`."
        ) from error
    if kind != "raw" or not isinstance(digest, str):
        raise CheckpointError(
            f'the mark {path} is not one of extract-raw, which writes "params": "raw" and a digest;'
            " remove it."
        )
    return FoundKind("raw", f"extracted from {origin}", digest)
