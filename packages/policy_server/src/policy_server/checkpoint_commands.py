"""The commands about checkpoints; importing this module imports JAX, as `commands` does."""

import math
from collections.abc import Mapping

from policy_server.checkpoint_extract import extract_raw
from policy_server.checkpoint_pin import pin_checkpoint
from policy_server.checkpoint_write import init_checkpoint
from policy_server.checkpoints import LeafInfo, check_tree, checkpoint_digest, leaf_shapes
from policy_server.config import (
    CheckpointCommand,
    CheckpointExtractRaw,
    CheckpointInit,
    CheckpointInspect,
    CheckpointPin,
)
from policy_server.errors import CheckpointError
from policy_server.model.config import PI05, TINY, Pi05Config, config_from_shapes, is_lora_leaf
from policy_server.params_kind import find_params_kind
from policy_server.terminal import say

MODEL_CONFIGS = {"tiny": TINY, "pi05": PI05}
_NAMES = {config: name for name, config in MODEL_CONFIGS.items()}


def run(command: CheckpointCommand) -> None:
    """Run one of them.

    Raises:
        PolicyServerError: With a sentence for the user.
    """
    match command:
        case CheckpointInit():
            config = MODEL_CONFIGS[command.config]
            digest = init_checkpoint(config, command.out, command.seed, command.dtype)
            say(f"{command.out} digest {digest}")
        case CheckpointInspect():
            _inspect(command)
        case CheckpointExtractRaw():
            say(f"{command.out} digest {extract_raw(command.dir, command.out)}")
        case CheckpointPin():
            digest = pin_checkpoint(command)
            say(
                f"arm {command.arm} is pinned to {command.params} weights with digest {digest} in "
                f"{command.arms_file}"
            )


def _inspect(command: CheckpointInspect) -> None:
    """Print every leaf, which weights they are, which model, the number of parameters, digest."""
    leaves = leaf_shapes(command.dir)
    for path, leaf in sorted(leaves.items()):
        note = " LoRA adapter" if is_lora_leaf(path) else ""
        say(f"{path} {leaf.dtype} {'x'.join(map(str, leaf.shape))}{note}")
    found = find_params_kind(command.dir)
    say(f"weights: {found.kind}, {found.why}")
    say(f"model: {describe_model(leaves)}")
    dtypes = ", ".join(sorted({str(leaf.dtype) for leaf in leaves.values()}))
    n_parameters = sum(math.prod(leaf.shape) for leaf in leaves.values())
    say(f"{len(leaves)} leaves, {n_parameters} parameters, {dtypes}")
    digest = checkpoint_digest(command.dir)
    found.check_digest(digest)
    say(f"digest {digest}")


def describe_model(leaves: Mapping[str, LeafInfo]) -> str:
    """Which pi0.5 these leaves are, or in a sentence why they are none that can be served."""
    shapes = {path: leaf.shape for path, leaf in leaves.items()}
    try:
        config = config_from_shapes(
            shapes, action_horizon=PI05.action_horizon, max_token_len=PI05.max_token_len
        )
        check_tree(leaves, config)
    except CheckpointError as error:
        return f"none that can be served, since {error}"
    return f"pi0.5, {_NAMES.get(config, 'of other sizes')}, {_sizes(config)}"


def _sizes(config: Pi05Config) -> str:
    vision, language, expert = config.siglip, config.paligemma, config.expert
    return (
        f"vision {vision.width} wide and {vision.depth} deep, language {language.width} wide and "
        f"{language.depth} deep, action expert {expert.width} wide, vocabulary "
        f"{config.vocab_size}, action_dim {config.action_dim}"
    )
