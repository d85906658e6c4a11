"""Whether a checkpoint's `params` are raw or averaged (EMA) weights, as far as the directory tells.

openpi's training writes `params` and `train_state` side by side. With EMA, `params` holds the
averaged weights and `train_state/params` the raw ones; without, `params` holds the raw ones and
`train_state/params` is empty (openpi src/openpi/training/checkpoints.py, 15a9616). A directory
without a `train_state`, such as a released checkpoint, tells nothing.
"""

import json
from pathlib import Path
from typing import Literal

from policy_server.errors import CheckpointError

ParamsKind = Literal["raw", "ema", "unknown"]

_TREE_FILE = "_METADATA"  # orbax's list of leaves


def find_params_kind(checkpoint_dir: Path) -> ParamsKind:
    """Read which weights `params` holds from the `train_state` beside it.

    Args:
        checkpoint_dir: The directory that holds `params`, or `params` itself.

    Raises:
        CheckpointError: There is a `train_state` whose list of leaves cannot be read.
    """
    step_dir = checkpoint_dir.parent if checkpoint_dir.name == "params" else checkpoint_dir
    tree_file = step_dir / "train_state" / _TREE_FILE
    if not tree_file.is_file():
        return "unknown"
    try:
        leaves = json.loads(tree_file.read_text())["tree_metadata"].values()
        paths = [[part["key"] for part in leaf["key_metadata"]] for leaf in leaves]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{tree_file} cannot be read, so it is unknown whether the checkpoint holds raw or EMA "
            "weights; copy the checkpoint again."
        ) from error
    has_weights = any(path[0] == "params" and len(path) > 1 for path in paths)
    return "ema" if has_weights else "raw"
