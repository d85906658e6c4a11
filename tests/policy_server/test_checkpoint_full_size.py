"""A checkpoint that does not fit twice in the memory is written and loaded leaf after leaf."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts
from served_arm import CHECKPOINT, options, write_arms
from training_step import LiveLeaves

from policy_server import checkpoint_write, checkpoints, policy
from policy_server.checkpoint_write import init_checkpoint, random_params, write_params
from policy_server.checkpoints import (
    RunningDigest,
    checkpoint_digest,
    digest,
    restore,
    restore_leaves,
)
from policy_server.errors import CheckpointError
from policy_server.model.config import TINY
from policy_server.plan import make_plan
from policy_server.policy import load_policy


@pytest.fixture
def live() -> LiveLeaves:
    return LiveLeaves()


def test_random_weights_are_written_with_one_leaf_in_memory(live, tmp_path, monkeypatch):
    made = checkpoint_write.random_params
    monkeypatch.setattr(checkpoint_write, "random_params", lambda *given: live.watch(made(*given)))
    found = init_checkpoint(TINY, tmp_path, seed=0)
    assert live.peak == 1
    assert found == checkpoint_digest(tmp_path)


def test_weights_reach_the_device_with_one_leaf_in_memory(live, tmp_path, monkeypatch):
    read = restore_leaves
    monkeypatch.setattr(policy, "restore_leaves", lambda path: live.watch(read(path)))
    loaded = load_policy(make_plan(options(write_arms(tmp_path))), "f32")
    assert live.peak == 1
    assert loaded.checkpoint_digest == digest(restore(CHECKPOINT))


def test_a_digest_is_computed_with_one_leaf_in_memory(live, monkeypatch):
    read = restore_leaves
    monkeypatch.setattr(checkpoints, "restore_leaves", lambda path: live.watch(read(path)))
    assert checkpoint_digest(CHECKPOINT) == digest(dict(read(CHECKPOINT)))
    assert live.peak == 1


def test_leaves_out_of_order_have_no_digest():
    leaves = [("b", np.zeros(1, np.float32)), ("a", np.zeros(1, np.float32))]
    with pytest.raises(ValueError, match="leaf a comes after b"):
        list(RunningDigest().watch(leaves))


def test_a_large_leaf_lies_in_many_chunks_and_is_read_back_by_orbax(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_write, "_CHUNK_BYTES", 256)
    leaf = np.arange(7 * 5 * 11, dtype=np.float32).reshape(7, 5, 11).astype(jnp.bfloat16)
    write_params(tmp_path, [("layers/w", leaf), ("scalar", np.array(3, np.float32))])
    kvstore = {
        "driver": "ocdbt",
        "base": {"driver": "file", "path": f"{tmp_path}/params/"},
        "path": "params.layers.w/",
    }
    store = ts.open({"driver": "zarr", "kvstore": kvstore}).result()
    assert store.chunk_layout.read_chunk.shape == (2, 5, 11)
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.restore(tmp_path / "params")["params"]
    np.testing.assert_array_equal(tree["layers"]["w"], leaf, strict=True)
    np.testing.assert_array_equal(tree["scalar"], np.float32(3))
    np.testing.assert_array_equal(restore(tmp_path)["layers/w"], leaf, strict=True)


def test_a_checkpoint_left_half_written_is_none(tmp_path):
    def stops_early():
        yield from list(random_params(dataclasses.replace(TINY, vocab_size=16), seed=0))[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_params(tmp_path, stops_early())
    with pytest.raises(CheckpointError, match="holds no orbax checkpoint"):
        restore(tmp_path)


def test_a_path_with_dots_is_read_and_written(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    roundabout = tmp_path / "elsewhere" / ".." / "here"
    write_params(roundabout, [("a", np.ones(2, np.float32))])
    np.testing.assert_array_equal(restore(roundabout)["a"], np.ones(2))
