"""Writing checkpoints, and random weights that are the same everywhere."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from golden_model import read_npz

from golden_data import COMPACT
from policy_server.checkpoint_write import init_checkpoint, random_params, write_params
from policy_server.checkpoints import digest, leaf_shapes, restore
from policy_server.errors import CheckpointError
from policy_server.model.config import IMAGE_KEYS, TINY
from policy_server.model.sampler import Sampler

# Written down once; another value means that every demo result changes.
TINY_SEED_0_DIGEST = "a4a0ebda4384187a268efcf00586135f9f75beb55a21a834fd8c4d92f941d15b"


def test_the_same_seed_gives_the_same_weights_on_every_machine(tmp_path: Path):
    init_checkpoint(TINY, tmp_path, seed=0)
    assert digest(restore(tmp_path)) == TINY_SEED_0_DIGEST
    assert digest(dict(random_params(TINY, seed=1))) != TINY_SEED_0_DIGEST


def test_float32_and_bfloat16_weights_hold_the_same_numbers():
    narrow = dict(random_params(TINY, seed=0, dtype="bfloat16"))
    for path, leaf in random_params(TINY, seed=0, dtype="float32"):
        assert (leaf.dtype, narrow[path].dtype) == (np.float32, jnp.bfloat16)
        np.testing.assert_array_equal(leaf, narrow[path].astype(np.float32))


def test_no_leaf_is_constant():
    for path, leaf in random_params(TINY, seed=0, dtype="float32"):
        assert leaf.std() > 0.01, path


def test_random_weights_keep_actions_finite_and_answering_to_what_is_seen():
    inputs = read_npz(COMPACT, "dummy_inputs.npz")
    sampler = Sampler(
        TINY,
        random_params(TINY, seed=0),
        compute_dtype="float32",
        weights="f32",
        num_steps=2,
    )
    black = {key: np.zeros((224, 224, 3), np.uint8) for key in IMAGE_KEYS}
    seen = {key: inputs[f"image/{key}"][0] for key in IMAGE_KEYS}
    masks = dict.fromkeys(IMAGE_KEYS, True)
    prompt = (inputs["tokenized_prompt"][0], inputs["tokenized_prompt_mask"][0])
    in_the_dark = sampler(black, masks, *prompt, inputs["noise"][0])
    in_the_light = sampler(seen, masks, *prompt, inputs["noise"][0])
    assert 0.1 < in_the_light.std() < 10.0
    assert np.abs(in_the_light - in_the_dark).max() > 1e-3


def test_orbax_itself_reads_what_is_written_under_the_key_params(tmp_path: Path):
    values = np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)
    write_params(tmp_path, [("head/kernel", values)])
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.restore(tmp_path / "params")
    np.testing.assert_array_equal(tree["params"]["head"]["kernel"], values)


def test_existing_params_are_never_overwritten(tmp_path: Path):
    write_params(tmp_path, [("a", np.zeros(1, np.float32))])
    with pytest.raises(CheckpointError, match="params exists already"):
        write_params(tmp_path, [("b", np.zeros(1, np.float32))])
    assert list(leaf_shapes(tmp_path)) == ["a"]
