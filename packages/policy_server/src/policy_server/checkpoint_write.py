"""Writes checkpoints that openpi and `checkpoints` can read, and makes weights from a seed."""

import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import Float

from policy_server.errors import CheckpointError
from policy_server.model.config import Pi05Config
from policy_server.model.numerics import DTypeName
from policy_server.model.pi05 import param_shapes

_BLOCK = 1 << 24  # elements drawn at once; bounds the scratch memory of a large leaf
_WRITE_CONCURRENT_GB = 2
_BIAS_STD = 0.1
_NORM_STD = 0.1
_MODULATION_STD = 0.3  # adaRMS scale, shift and gate: away from zero, where trained gates lie


def write_params(path: Path, flat: Mapping[str, Float[np.ndarray, "..."]]) -> None:
    """Write weights as `<path>/params`, the layout of a converted openpi checkpoint.

    Args:
        path: Step directory; may exist, must hold no `params` yet.
        flat: Leaves by path joined with "/"; dtypes are kept.

    Raises:
        CheckpointError: `<path>/params` exists.
    """
    folder = path.absolute() / "params"
    if folder.exists():
        raise CheckpointError(f"{folder} exists already; choose another folder or remove it")
    path.mkdir(parents=True, exist_ok=True)
    handler = ocp.PyTreeCheckpointHandler(save_concurrent_gb=_WRITE_CONCURRENT_GB)
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(folder, args=ocp.args.PyTreeSave({"params": _nest(flat)}))


def random_params(
    config: Pi05Config, seed: int, dtype: DTypeName = "bfloat16"
) -> Iterator[tuple[str, Float[np.ndarray, "..."]]]:
    """Weights drawn leaf by leaf, the same on every machine and in any order of leaves.

    Each leaf has its own generator, seeded with (seed, crc32 of its path). Values are uniform (only
    additions and products of exact draws, so no library's logarithm matters), scaled so that
    activations keep their size through the layers, and all representable in bfloat16. No leaf is
    zero, unlike openpi's initialisation.

    Args:
        config: Sizes.
        seed: At least 0.
        dtype: Of the arrays; the values are the same.
    """
    for path, shape in param_shapes(config).items():
        rng = np.random.default_rng([seed, zlib.crc32(path.encode())])
        center, std = _distribution(path, shape)
        yield path, _uniform(rng, shape, center, std).astype(dtype, copy=False)


def init_checkpoint(
    config: Pi05Config, out_dir: Path, seed: int, dtype: DTypeName = "bfloat16"
) -> None:
    """Write a step directory with random weights.

    Holds one copy of the weights in memory (6.7 GB at full size in bfloat16).

    Raises:
        CheckpointError: `out_dir` has params already.
    """
    write_params(out_dir, dict(random_params(config, seed, dtype)))


def _nest(flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree


def _distribution(path: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of a leaf's values."""
    *_, parent, name = ("", *path.split("/"))
    adaptive = "norm_1/" in path
    if name == "scale":  # flax's layer norms multiply by scale, Gemma's norms by 1 + scale
        return (1.0 if path.startswith("PaliGemma/img/") else 0.0), _NORM_STD
    if name == "bias":
        return 0.0, _MODULATION_STD if adaptive else _BIAS_STD
    if name == "pos_embedding":
        return 0.0, _MODULATION_STD
    if name == "input_embedding":  # multiplied by sqrt(width) when used
        return 0.0, 1 / math.sqrt(shape[-1])
    return 0.0, (_MODULATION_STD if adaptive else 1.0) / math.sqrt(_fan_in(parent, shape))


def _fan_in(module: str, shape: tuple[int, ...]) -> int:
    """Summed elements per output of a product with the leaf of this module."""
    if module == "embedding":
        return math.prod(shape[:3])
    if module in ("query", "key", "value"):
        return shape[-3]
    if module == "out" or module.startswith("attn_vec_einsum"):
        return shape[-3] * shape[-2]
    return shape[-2]


def _uniform(
    rng: np.random.Generator, shape: tuple[int, ...], center: float, std: float
) -> Float[np.ndarray, "..."]:
    """Uniform values with that mean and standard deviation, rounded to bfloat16."""
    values = np.empty(shape, jnp.bfloat16)
    flat = values.reshape(-1)
    half_width = np.float32(std * math.sqrt(3))
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        drawn = rng.random(block.size, dtype=np.float32) * np.float32(2) - np.float32(1)
        block[:] = (np.float32(center) + half_width * drawn).astype(jnp.bfloat16)
    return values
