"""Records in the table of arms what the user vouches for: which weights an arm is served with."""

from policy_server.arms import Arm, get_arm, load_arms
from policy_server.arms_edit import set_in_row
from policy_server.checkpoints import checkpoint_digest, leaf_shapes
from policy_server.config import CheckpointPin
from policy_server.errors import CheckpointError
from policy_server.params_kind import FoundKind, find_params_kind
from policy_server.plan import find_checkpoint, wrong_kind
from policy_server.policy import check_leaves
from policy_server.terminal import ask, require_terminal


def pin_checkpoint(command: CheckpointPin) -> str:
    """Write a checkpoint's digest and kind of weights into an arm's row.

    A digest alone says which weights, not whose or of which kind: that is the user's word. Where
    the directory tells the kind, it must agree.

    Returns:
        The digest.

    Raises:
        ConfigError: The arm or the checkpoint does not exist, the weights are of the other kind or
            of another model, the user does not vouch or cannot be asked, or the table cannot be
            edited.
    """
    row = get_arm(command.arm, load_arms(command.arms_file), command.arms_file)
    directory = find_checkpoint(row, command.dir, command.checkpoints_root, prefix="--")
    found = find_params_kind(directory)
    if found.kind not in ("unknown", command.params):
        raise wrong_kind(row, found.kind, command.params, directory, flag="--dir")
    check_leaves(leaf_shapes(directory), row)
    claim = f"{directory} holds the {command.params} weights of arm {row.name!r}"
    if not command.yes:
        require_terminal(claim)
    digest = checkpoint_digest(directory)
    found.check_digest(digest)
    if not command.yes and not ask(_question(row, found, claim, digest)):
        raise CheckpointError("nothing was pinned, since nobody vouched for the weights.")
    pins = {"params": command.params, "checkpoint_digest": digest}
    set_in_row(command.arms_file, row.name, pins)
    return digest


def _question(row: Arm, found: FoundKind, claim: str, digest: str) -> str:
    known = "its directory does not say" if found.kind == "unknown" else f"it is {found.kind}"
    before = row.checkpoint_digest
    replaced = f"; the row is pinned to {before}" if before not in ("", digest) else ""
    return (
        f"The checkpoint's digest is {digest}{replaced}; which weights: {known} ({found.why}). "
        f"Do you vouch that {claim}?"
    )
