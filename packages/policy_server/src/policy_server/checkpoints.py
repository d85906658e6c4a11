"""Reads orbax checkpoints of pi0.5 as openpi writes them, without openpi's handler classes.

A step directory holds `params/`, one PyTree whose single top key is `params`. Training writes the
weights under `<path>/value`, converted checkpoints under `<path>` itself; here a leaf is named by
its path joined with "/" without either. Source: openpi src/openpi/models/model.py, restore_params,
and src/openpi/training/checkpoints.py (15a9616).
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import tensorstore as ts
from jaxtyping import Shaped

from policy_server.errors import CheckpointError
from policy_server.model.config import Pi05Config, is_lora_leaf
from policy_server.model.pi05 import param_shapes

WEIGHT_DTYPES = (np.dtype(np.float32), np.dtype(jnp.bfloat16))
TREE_FILE = "_METADATA"  # orbax writes it beside the arrays of a PyTree
WROTE_EVERY_CHUNK = "store_array_data_equal_to_fill_value"  # a key of that file
TOP_KEY = "params"
_CONTEXT = {"file_io_concurrency": {"limit": 4}}  # chunks in flight; bounds the scratch memory


@dataclasses.dataclass(frozen=True)
class LeafInfo:
    """Shape and on-disk dtype of one leaf."""

    shape: tuple[int, ...]
    dtype: np.dtype


def params_dir(path: Path) -> Path:
    """The folder with the weights' PyTree: `path` itself, or `params` in a step directory.

    Raises:
        CheckpointError: There is no such folder; names a step directory below `path` if one is
            there.
    """
    for folder in (path / "params", path):
        if (folder / TREE_FILE).is_file():
            return folder
    if not path.is_dir():
        raise CheckpointError(f"--policy.dir {path} is not a directory")
    steps = [child for child in path.iterdir() if (child / "params" / TREE_FILE).is_file()]
    if steps:
        newest = max(steps, key=lambda step: (step.name.isdigit(), step.name.zfill(20)))
        raise CheckpointError(
            f"--policy.dir {path} is a folder of training steps; give one of them, such as {newest}"
        )
    raise CheckpointError(
        f"--policy.dir {path} holds no orbax checkpoint: expected a step directory with params/ "
        f"in it, or that folder itself, with a {TREE_FILE} file"
    )


def leaf_shapes(path: Path) -> dict[str, LeafInfo]:
    """Every leaf's shape and dtype, without reading values.

    Raises:
        CheckpointError: See `params_dir`; or the metadata is damaged, or is not that of weights.
    """
    return {
        name: LeafInfo(tuple(store.shape), store.dtype.numpy_dtype)
        for name, store in _open_leaves(params_dir(path))
    }


def restore_leaves(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Read leaf after leaf, as they are on disk: float32 or (ml_dtypes) bfloat16, unconverted.

    They come in the order of their paths. None is kept here, so that a reader that drops each leaf
    before it asks for the next holds one at a time.

    Raises:
        CheckpointError: See `leaf_shapes`; or a file is missing or cut.
    """
    folder = params_dir(path)
    for name, store in _open_leaves(folder):
        yield name, _read(store, folder)


def restore_raw_leaves(train_state: Path) -> Iterator[tuple[str, np.ndarray]]:
    """As `restore_leaves`, for the raw weights in a `train_state`; nothing else of it is read.

    Raises:
        CheckpointError: There are none, since the run kept no average; or a file is damaged.
    """
    for name, store in _open_leaves(train_state, among_others=True):
        yield name, _read(store, train_state)


def restore(path: Path) -> dict[str, np.ndarray]:
    """Every leaf of `restore_leaves` by its path, in one copy."""
    return dict(restore_leaves(path))


def check_tree(found: Mapping[str, LeafInfo], config: Pi05Config) -> None:
    """Compare a checkpoint's leaves with the model's.

    Args:
        found: From `leaf_shapes`.
        config: Sizes that the checkpoint must have.

    Raises:
        CheckpointError: One sentence with every missing, extra, misshapen or mistyped leaf.
    """
    expected = param_shapes(config)
    problems = [f"missing {path} {expected[path]}" for path in sorted(expected.keys() - found)]
    for path in sorted(found.keys() - expected):
        reason = " (a LoRA adapter, which is not merged here)" if is_lora_leaf(path) else ""
        problems.append(f"extra {path} {found[path].shape}{reason}")
    for path in sorted(expected.keys() & found):
        leaf = found[path]
        if leaf.shape != expected[path]:
            problems.append(f"{path} has shape {leaf.shape}, expected {expected[path]}")
        if leaf.dtype not in WEIGHT_DTYPES:
            problems.append(f"{path} is {leaf.dtype}, expected float32 or bfloat16")
    if problems:
        raise CheckpointError(
            f"--policy.dir is not the checkpoint of this model, {len(problems)} of its leaves "
            f"differ: {'; '.join(problems)}"
        )


class RunningDigest:
    r"""Identity of a set of weights: sha256 over the leaves in the order of their paths.

    Each leaf contributes the line `<path> <dtype> <d0>x<d1>...\n` in UTF-8, then its values in C
    order, little-endian. Values count as they are on disk (a bfloat16 copy of float32 weights is
    another checkpoint); the files' layout and a trailing `value` do not.
    """

    def __init__(self) -> None:
        self._total = hashlib.sha256()
        self._last = ""

    def watch(
        self, leaves: Iterable[tuple[str, Shaped[np.ndarray, "..."]]]
    ) -> Iterator[tuple[str, Shaped[np.ndarray, "..."]]]:
        """Pass leaves on, sorted by path, and take each into account; keeps none of them.

        Raises:
            ValueError: A leaf comes out of order.
        """
        for path, leaf in leaves:
            self._add(path, leaf)
            passed = [leaf]
            del leaf  # who asked may drop it before the next one is made
            yield path, passed.pop()

    def hexdigest(self) -> str:
        """The digest of the leaves so far."""
        return self._total.hexdigest()

    def _add(self, path: str, leaf: Shaped[np.ndarray, "..."]) -> None:
        if path <= self._last:
            raise ValueError(f"leaf {path} comes after {self._last}")
        self._last = path
        shape = "x".join(str(size) for size in leaf.shape)
        self._total.update(f"{path} {leaf.dtype.name} {shape}\n".encode())
        self._total.update(_little_endian_bytes(np.ascontiguousarray(leaf)))


def digest(params: Mapping[str, Shaped[np.ndarray, "..."]]) -> str:
    """The `RunningDigest` of weights that are in memory."""
    return _digest_of((path, params[path]) for path in sorted(params))


def checkpoint_digest(path: Path) -> str:
    """The `RunningDigest` of a checkpoint, with one leaf in memory at a time.

    Raises:
        CheckpointError: See `restore_leaves`.
    """
    return _digest_of(restore_leaves(path))


def _digest_of(leaves: Iterable[tuple[str, Shaped[np.ndarray, "..."]]]) -> str:
    running = RunningDigest()
    collections.deque(running.watch(leaves), maxlen=0)  # holds none, unlike a loop's variable
    return running.hexdigest()


def _little_endian_bytes(leaf: np.ndarray) -> memoryview:
    """The values' bytes, without a copy on a little-endian machine."""
    as_integers = leaf.reshape(-1).view(f"u{leaf.dtype.itemsize}")
    return as_integers.astype(f"<u{leaf.dtype.itemsize}", copy=False).view(np.uint8).data


def _read(store: ts.TensorStore, folder: Path) -> Shaped[np.ndarray, "..."]:
    with _damage_named(folder):
        return store.read().result()


def _open_leaves(
    folder: Path, *, among_others: bool = False
) -> Iterator[tuple[str, ts.TensorStore]]:
    """Open the arrays of a PyTree folder one after the other, in the order of their paths.

    Orbax's own reader opens all of them at once and, when one is damaged, leaves the others'
    callbacks to print tracebacks.

    Args:
        folder: Holds the tree's file.
        among_others: Whether weights are part of a larger tree, as in a `train_state`.
    """
    with _damage_named(folder):
        metadata = json.loads((folder / TREE_FILE).read_text())
        keys = [
            tuple(str(part["key"]) for part in leaf["key_metadata"])
            for leaf in metadata["tree_metadata"].values()
        ]
        spec = {
            "driver": "zarr3" if metadata.get("use_zarr3", False) else "zarr",
            # A chunk that is not there is damage, unless the writer left out chunks of zeros.
            "fill_missing_data_reads": not metadata.get(WROTE_EVERY_CHUNK, False),
            "context": _CONTEXT,
        }
    if among_others:  # a tree without weights has an empty leaf of that name
        keys = [key for key in keys if key[0] == TOP_KEY and len(key) > 1]
        if not keys:
            raise CheckpointError(
                f"{folder} holds no raw weights: the run kept no average, so that the params "
                "beside it are the raw ones and can be served as they are"
            )
    for path, key in sorted(_leaf_names(folder, keys).items()):
        with _damage_named(folder):
            kvstore = _kvstore(folder, ".".join(key))
            store = ts.open({**spec, "kvstore": kvstore}, open=True, read=True).result()
        yield path, store


def _leaf_names(folder: Path, keys: Sequence[tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Stored key of each leaf by its path without the top key and a `value` that ends them all."""
    top = {key[0] for key in keys}
    if top != {TOP_KEY}:
        raise CheckpointError(
            f"--policy.dir {folder} holds the top-level keys {', '.join(sorted(top))} instead of "
            f"only {TOP_KEY!r}, so it is not the params folder of a step directory"
        )
    end = -1 if all(key[-1] == "value" for key in keys) else None
    return {"/".join(key[1:end]): key for key in keys}


def _kvstore(folder: Path, name: str) -> dict[str, Any]:
    """Where tensorstore finds an array: in orbax's database, or in a folder of its own."""
    folder = folder.resolve()  # tensorstore takes no ".."
    if (folder / "manifest.ocdbt").exists():
        base = {"driver": "file", "path": f"{folder}/"}
        return {"driver": "ocdbt", "base": base, "path": f"{name}/"}
    return {"driver": "file", "path": f"{folder / name}/"}


@contextlib.contextmanager
def _damage_named(folder: Path) -> Iterator[None]:
    """Report what json and tensorstore raise for missing, cut or overwritten files as our error."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointError(
            f"the checkpoint {folder} cannot be read, a file in it is missing or damaged "
            f"({reason[:200]}), so copy the checkpoint again"
        ) from error
