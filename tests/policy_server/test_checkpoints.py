"""Reading checkpoints: openpi's own, both layouts, and damaged ones."""

import dataclasses
import math
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from golden_data import COMPACT, FULL
from policy_server.checkpoint_write import random_params, write_params
from policy_server.checkpoints import (
    LeafInfo,
    check_tree,
    digest,
    leaf_shapes,
    params_dir,
    restore,
    restore_leaves,
)
from policy_server.errors import CheckpointError
from policy_server.model.config import TINY
from policy_server.model.pi05 import param_shapes

PLAIN = COMPACT / "ckpt_dummy_plain_bf16"
needs_whole_set = pytest.mark.skipif(not FULL.is_dir(), reason="the whole set is not here")


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A copy that a test may cut."""
    copy = tmp_path / "copied"
    shutil.copytree(PLAIN, copy, copy_function=shutil.copyfile)
    return copy


def tiny_leaves() -> dict[str, LeafInfo]:
    dtype = np.dtype(np.float32)
    return {path: LeafInfo(shape, dtype) for path, shape in param_shapes(TINY).items()}


@needs_whole_set
@pytest.mark.parametrize(
    ("checkpoint", "weights", "dtype"),
    [
        ("ckpt_dummy_ema/100", "params_dummy_ema.npz", "float32"),
        ("ckpt_dummy_plain_bf16", "params_dummy_ema.npz", "bfloat16"),
        ("ckpt_asym_plain", "params_asym.npz", "float32"),
    ],
)
def test_restored_weights_are_the_recorded_ones(checkpoint: str, weights: str, dtype: str):
    restored = restore(FULL / checkpoint)
    with np.load(FULL / weights) as recorded:
        assert set(restored) == set(recorded.files)
        for path, leaf in restored.items():
            assert leaf.dtype == dtype
            np.testing.assert_array_equal(leaf.astype(np.float32), recorded[path])


@needs_whole_set
def test_a_run_without_ema_restores_its_own_weights():
    raw, ema = restore(FULL / "ckpt_dummy_noema/100"), restore(FULL / "ckpt_dummy_ema/100")
    check_tree(leaf_shapes(FULL / "ckpt_dummy_noema/100"), TINY)
    assert raw.keys() == ema.keys()
    assert all(not np.array_equal(raw[path], ema[path]) for path in raw)


@needs_whole_set
def test_a_train_state_is_not_taken_for_weights():
    with pytest.raises(CheckpointError, match=r"opt_state.* not the params folder"):
        leaf_shapes(FULL / "ckpt_dummy_ema/100/train_state")


def test_shapes_and_dtypes_are_known_without_reading_values():
    leaves = leaf_shapes(PLAIN)
    check_tree(leaves, TINY)
    assert {leaf.dtype for leaf in leaves.values()} == {np.dtype(jnp.bfloat16)}
    assert leaves == {
        path: LeafInfo(leaf.shape, leaf.dtype) for path, leaf in restore(PLAIN).items()
    }


def test_a_step_directory_and_its_params_folder_are_the_same_checkpoint():
    assert params_dir(PLAIN) == params_dir(PLAIN / "params") == PLAIN / "params"


def test_a_folder_of_steps_names_the_newest_one(tmp_path: Path):
    for step in ("900", "10000"):
        (tmp_path / step / "params").mkdir(parents=True)
        (tmp_path / step / "params" / "_METADATA").touch()
    with pytest.raises(CheckpointError, match=f"give one of them, such as {tmp_path}/10000$"):
        params_dir(tmp_path)


def test_a_missing_directory_is_named_with_the_flag(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"^--policy.dir .*/absent is not a directory$"):
        restore(tmp_path / "absent")


def test_a_directory_without_params_says_what_was_expected(tmp_path: Path):
    with pytest.raises(CheckpointError, match="expected a step directory with params/ in it"):
        restore(tmp_path)


@pytest.mark.parametrize("name", ["manifest.ocdbt", "_METADATA", "d", "ocdbt.process_0/d"])
def test_a_cut_file_is_one_sentence_about_the_directory(damaged: Path, name: str):
    target = damaged / "params" / name
    files = [target] if target.is_file() else list(target.iterdir())
    largest = max(files, key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=r"copied/params cannot be read.*copy the checkpoint"):
        restore(damaged)


def test_a_leaf_in_a_file_of_its_own_is_read_and_its_loss_is_noticed(tmp_path: Path):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
    with ocp.Checkpointer(handler) as checkpointer:
        tree = {"params": {"head": {"kernel": {"value": values}}}}
        checkpointer.save(tmp_path / "params", args=ocp.args.PyTreeSave(tree))
    np.testing.assert_array_equal(restore(tmp_path)["head/kernel"], values)
    (tmp_path / "params" / "params.head.kernel.value" / "0.0").unlink()
    with pytest.raises(CheckpointError, match="missing or damaged"):
        restore(tmp_path)


def test_leaves_are_read_one_after_the_other(damaged: Path):
    leaves = restore_leaves(damaged)
    first, _ = next(leaves)
    shutil.rmtree(damaged)
    assert first in param_shapes(TINY)
    with pytest.raises(CheckpointError):
        next(leaves)


def test_one_error_lists_every_missing_extra_and_misshapen_leaf():
    leaves = tiny_leaves()
    del leaves["action_in_proj/bias"], leaves["time_mlp_in/bias"]
    leaves["value_head/kernel"] = LeafInfo((3,), np.dtype(np.float32))
    leaves["PaliGemma/llm/layers/mlp/linear_lora_a"] = LeafInfo((4, 128, 8), np.dtype(np.float32))
    leaves["action_out_proj/bias"] = LeafInfo((7,), np.dtype(np.float32))
    leaves["action_out_proj/kernel"] = LeafInfo((64, 32), np.dtype(np.int8))
    with pytest.raises(CheckpointError) as error:
        check_tree(leaves, TINY)
    for part in (
        "6 of its leaves differ",
        "missing action_in_proj/bias (64,)",
        "missing time_mlp_in/bias (64,)",
        "extra value_head/kernel (3,)",
        "extra PaliGemma/llm/layers/mlp/linear_lora_a (4, 128, 8) (a LoRA adapter",
        "action_out_proj/bias has shape (7,), expected (32,)",
        "action_out_proj/kernel is int8, expected float32 or bfloat16",
    ):
        assert part in str(error.value)


def test_a_complete_tree_passes():
    check_tree(tiny_leaves(), TINY)


def test_the_digest_ignores_the_layout_but_no_value_path_shape_or_dtype(tmp_path: Path):
    params = {"a/w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(2, jnp.bfloat16)}
    reference = digest(params)
    assert digest(dict(reversed(params.items()))) == reference
    with_value = {f"{path}/value": leaf for path, leaf in params.items()}
    write_params(tmp_path / "plain", params.items())
    write_params(tmp_path / "value", with_value.items())
    assert digest(restore(tmp_path / "plain")) == digest(restore(tmp_path / "value")) == reference
    changed = params["a/w"] + np.eye(2, 3, dtype=np.float32) * 1e-6
    others = [
        {**params, "a/w": changed},
        {**params, "a/w": params["a/w"].reshape(3, 2)},
        {**params, "a/w": params["a/w"].astype(np.float64)},
        {"a/v": params["a/w"], "b": params["b"]},
    ]
    assert len({reference, *map(digest, others)}) == 5


@needs_whole_set
def test_both_layouts_of_the_same_float32_weights_have_the_same_digest(tmp_path: Path):
    trained = restore(FULL / "ckpt_dummy_ema/100")
    write_params(tmp_path, trained.items())
    assert digest(restore(tmp_path)) == digest(trained)


def test_random_weights_are_written_and_read_back_unchanged(tmp_path: Path):
    small = dataclasses.replace(TINY, vocab_size=16)
    params = dict(random_params(small, seed=3, dtype="float32"))
    write_params(tmp_path, params.items())
    restored = restore(tmp_path)
    check_tree(leaf_shapes(tmp_path), small)
    assert sum(leaf.size for leaf in restored.values()) == sum(
        math.prod(shape) for shape in param_shapes(small).values()
    )
    for path, leaf in params.items():
        np.testing.assert_array_equal(restored[path], leaf)
