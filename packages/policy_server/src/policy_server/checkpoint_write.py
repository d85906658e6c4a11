"""Writes checkpoints that openpi and `checkpoints` can read, and makes weights from a seed."""

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import tensorstore as ts
from jaxtyping import Float

from policy_server.checkpoints import TOP_KEY, TREE_FILE, WROTE_EVERY_CHUNK, RunningDigest
from policy_server.errors import CheckpointError
from policy_server.model.config import Pi05Config
from policy_server.model.numerics import DTypeName
from policy_server.model.pi05 import param_shapes

_BLOCK = 1 << 24  # elements drawn at once; bounds the scratch memory of a large leaf
_CHUNK_BYTES = 1 << 26  # of a file's chunk; bounds the scratch memory of writing and reading
_KEY_OF_DICT = 2  # orbax's KeyType.DICT
_BIAS_STD = 0.1
_NORM_STD = 0.1
_MODULATION_STD = 0.3  # adaRMS scale, shift and gate: away from zero, where trained gates lie


def write_params(path: Path, leaves: Iterable[tuple[str, Float[np.ndarray, "..."]]]) -> None:
    """Write weights as `<path>/params`, the layout of a converted openpi checkpoint.

    Orbax's own writer wants all leaves at once. This one takes them one by one, so that weights
    larger than the memory can be written, and writes the list of leaves last: a folder that was
    left half written is no checkpoint.

    Args:
        path: Step directory; may exist, must hold no `params` yet.
        leaves: Path joined with "/" and values; dtypes are kept. None is held after it is written.

    Raises:
        CheckpointError: `<path>/params` exists, or the disk is full.
    """
    folder = path.resolve() / "params"
    if folder.exists():
        raise CheckpointError(f"{folder} exists already; choose another folder or remove it")
    tree = {}
    for name, leaf in leaves:
        folder.mkdir(parents=True, exist_ok=True)  # only when there is something to write
        key = (TOP_KEY, *name.split("/"))
        tree[str(key)] = _describe_leaf(key, leaf.shape)
        try:
            _write_leaf(folder, ".".join(key), leaf)
        except (OSError, ValueError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise CheckpointError(
                f"{folder} cannot be written ({reason[:200]}); remove it and choose another --out"
            ) from error
        del leaf  # before the next one is made
    metadata = {"tree_metadata": tree, "use_zarr3": False, WROTE_EVERY_CHUNK: True}
    (folder / TREE_FILE).write_text(json.dumps(metadata))


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
    for path, shape in sorted(param_shapes(config).items()):
        rng = np.random.default_rng([seed, zlib.crc32(path.encode())])
        center, std = _distribution(path, shape)
        yield path, _uniform(rng, shape, center, std).astype(dtype, copy=False)


def init_checkpoint(
    config: Pi05Config, out_dir: Path, seed: int, dtype: DTypeName = "bfloat16"
) -> str:
    """Write a step directory with random weights, one leaf in memory at a time.

    Returns:
        Its digest.

    Raises:
        CheckpointError: `out_dir` has params already, or the disk is full.
    """
    running = RunningDigest()
    write_params(out_dir, running.watch(random_params(config, seed, dtype)))
    return running.hexdigest()


def _write_leaf(folder: Path, name: str, leaf: Float[np.ndarray, "..."]) -> None:
    """Write an array into orbax's database, some rows (of the first axis) at a time."""
    row_bytes = math.prod(leaf.shape[1:]) * leaf.dtype.itemsize
    n_rows = max(1, _CHUNK_BYTES // row_bytes)
    base = {"driver": "file", "path": f"{folder}/"}
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"},
        "metadata": {
            "chunks": [min(n_rows, leaf.shape[0]), *leaf.shape[1:]] if leaf.ndim else [],
            "compressor": {"id": "zstd", "level": 1},
        },
        "store_data_equal_to_fill_value": True,
    }
    dtype = ts.dtype(leaf.dtype)
    store = ts.open(spec, create=True, dtype=dtype, shape=leaf.shape, write=True).result()
    if not leaf.ndim:
        store.write(leaf).result()
        return
    for start in range(0, leaf.shape[0], n_rows):
        rows = slice(start, min(start + n_rows, leaf.shape[0]))
        store[rows].write(leaf[rows]).result()


def _describe_leaf(key: Sequence[str], shape: Sequence[int]) -> dict[str, Any]:
    """An entry of orbax's list of leaves."""
    return {
        "key_metadata": [{"key": part, "key_type": _KEY_OF_DICT} for part in key],
        "value_metadata": {
            "value_type": "np.ndarray",  # read as it is; openpi asks for jax arrays by itself
            "skip_deserialize": False,
            "write_shape": list(shape),
        },
    }


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
