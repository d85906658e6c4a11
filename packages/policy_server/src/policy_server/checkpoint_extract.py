"""Makes the raw weights of a training step servable, without its optimizer's state."""

import shutil
from pathlib import Path

from policy_server.checkpoint_write import write_params
from policy_server.checkpoints import RunningDigest, restore_raw_leaves
from policy_server.errors import CheckpointError
from policy_server.params_kind import find_step_dir, write_marker


def extract_raw(checkpoint_dir: Path, out_dir: Path) -> str:
    """Write `train_state/params` of a training step as the `params` of a new directory.

    Leaf by leaf, in the dtype that is on disk; `mu` and `nu` of the optimizer (twice the size of
    the weights) are not read. `assets` is copied for openpi's sake; nothing here reads norm stats
    from a checkpoint. The mark that says where the weights come from is written last.

    Args:
        checkpoint_dir: The training step's directory, or its `params`.
        out_dir: Becomes a directory with `params`, `assets` and the mark.

    Returns:
        The digest of the raw weights.

    Raises:
        CheckpointError: The step has no `train_state` or no raw weights in it, a file of it is
            damaged, or `out_dir` has params already or cannot be written.

    Source:
        openpi src/openpi/training/checkpoints.py, _split_params (15a9616).
    """
    step_dir = find_step_dir(checkpoint_dir)
    train_state = step_dir / "train_state"
    if not train_state.is_dir():
        raise CheckpointError(
            f"{step_dir} has no train_state, so the raw weights are not in it; give the directory "
            "of a training step as openpi's training wrote it."
        )
    running = RunningDigest()
    leaves = running.watch(restore_raw_leaves(train_state))
    write_params(out_dir, leaves)
    assets = step_dir / "assets"
    if assets.is_dir():
        shutil.copytree(assets, out_dir / "assets")
    write_marker(out_dir, origin=train_state.resolve(), digest=running.hexdigest())
    return running.hexdigest()
