"""Masks, positions, rotary and time embeddings, Euler steps, and what each dtype rounds."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_model import read_npz

from golden_data import COMPACT, golden_roots
from policy_server.model.attention import apply_rope, attend, attention_mask, token_positions
from policy_server.model.flow import embed_times, integrate, make_schedule
from policy_server.model.gemma import Embedder, RMSNorm
from policy_server.model.numerics import DTypeName, Numerics
from policy_server.model.sampler import PIXEL_VALUES, pixel_values

ROOTS = pytest.mark.parametrize(
    "root", golden_roots(), ids=lambda root: "compact" if root == COMPACT else "full"
)
BFLOAT16_WEIGHTS = Numerics(compute="bfloat16", weights="bfloat16")
FLOAT32_WEIGHTS = Numerics(compute="bfloat16", weights="float32")


@ROOTS
def test_masks_and_positions_are_the_recorded_ones(root: Path):
    for name, case in json.loads((root / "attn_masks.json").read_text()).items():
        valid = jnp.asarray(case["input_mask"], bool)
        mask = attention_mask(valid, jnp.asarray(case["mask_ar"], bool))
        np.testing.assert_array_equal(mask, np.asarray(case["attn_mask"], bool), err_msg=name)
        np.testing.assert_array_equal(token_positions(valid), case["positions"], err_msg=name)


@ROOTS
@pytest.mark.parametrize(("dtype", "key"), [("float32", "y_f32"), ("bfloat16", "y_bf16")])
def test_rotary_positions_are_the_recorded_ones_up_to_position_967(
    root: Path, dtype: DTypeName, key: str
):
    golden = read_npz(root, "posemb_rope_rng.npz")
    x = jnp.asarray(golden["rope/x"], dtype)
    rotated = jax.jit(apply_rope)(x, jnp.asarray(golden["rope/positions"]))
    assert rotated.dtype == dtype
    expected = golden[f"rope/{key}"]
    np.testing.assert_allclose(np.asarray(rotated, np.float32), expected, rtol=0, atol=2e-6)


@ROOTS
@pytest.mark.parametrize("width", [40, 64, 1024])
def test_time_embeddings_are_the_recorded_ones(root: Path, width: int):
    golden = read_npz(root, "posemb_rope_rng.npz")
    if root == COMPACT and f"posemb_sincos/{width}" not in golden:
        pytest.skip(f"width {width} is not in the committed selection")
    embedded = embed_times(golden["times"], width)
    np.testing.assert_allclose(embedded, golden[f"posemb_sincos/{width}"], rtol=0, atol=1e-6)


@ROOTS
def test_ten_flow_times_are_the_recorded_ones_bit_for_bit(root: Path):
    times = make_schedule(10, width=8).times
    np.testing.assert_array_equal(times, read_npz(root, "posemb_rope_rng.npz")["times"])


@pytest.mark.parametrize("num_steps", range(1, 21))
def test_the_flow_takes_exactly_the_asked_number_of_steps_from_noise_to_data(num_steps: int):
    schedule = make_schedule(num_steps, width=8)
    trajectory = integrate(lambda x, time: jnp.ones_like(x), jnp.zeros((1, 1, 1)), schedule)
    assert schedule.times[0] == 1.0
    np.testing.assert_allclose(schedule.times[-1], 1 / num_steps, atol=1e-6)
    assert trajectory.x_t.shape == (num_steps, 1, 1, 1)
    np.testing.assert_allclose(trajectory.x_t[-1], -1.0, atol=1e-6)  # down the velocity field


def test_a_query_without_any_key_averages_instead_of_becoming_nan():
    key, value = jnp.ones((1, 4, 1, 2)), jnp.arange(8.0).reshape(1, 4, 1, 2)
    attended = attend(jnp.ones((1, 1, 2, 2)), key, value, jnp.zeros((1, 1, 4), bool))
    np.testing.assert_allclose(attended[0, 0], [[3.0, 4.0], [3.0, 4.0]])


def test_each_pixel_level_becomes_what_numpy_computes_bit_for_bit():
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    expected = levels.astype(np.float32) / 255.0 * 2.0 - 1.0
    np.testing.assert_array_equal(jax.jit(pixel_values)(levels), expected)
    assert (PIXEL_VALUES[0], PIXEL_VALUES[255]) == (-1.0, 1.0)


@pytest.mark.parametrize("storage", ["float32", "bfloat16"])
def test_bfloat16_weights_round_the_embedding_factor_however_they_are_stored(storage: DTypeName):
    embedder = Embedder(BFLOAT16_WEIGHTS, 1, 2048)
    embedder.input_embedding.set_value(jnp.ones((1, 2048), storage))
    embedded = embedder(jnp.zeros((1, 1), jnp.int32))
    assert embedded.dtype == jnp.bfloat16
    assert float(embedded[0, 0, 0]) == 45.25  # sqrt(2048) is 45.2548


def test_float32_weights_keep_the_embedding_factor():
    embedder = Embedder(FLOAT32_WEIGHTS, 1, 2048)
    embedder.input_embedding.set_value(jnp.ones((1, 2048)))
    embedded = embedder(jnp.zeros((1, 1), jnp.int32))
    np.testing.assert_allclose(embedded[0, 0, 0], np.sqrt(2048), rtol=1e-7)


@pytest.mark.parametrize(
    ("numerics", "lost"), [(BFLOAT16_WEIGHTS, True), (FLOAT32_WEIGHTS, False)], ids=["bf16", "f32"]
)
def test_one_plus_scale_is_rounded_only_for_bfloat16_weights(numerics: Numerics, lost: bool):
    # 1 + 2^-8 is a tie that bfloat16 rounds down to 1; times 1.5 it would round up to 1.5078125
    norm = RMSNorm(numerics, 2)
    norm.scale.set_value(jnp.full((2,), 2.0**-8))
    x = jnp.asarray([[[np.sqrt(2) * 0.8, np.sqrt(2) * 0.6]]], jnp.bfloat16)
    normed = norm(x, None).x
    norm.scale.set_value(jnp.zeros((2,)))
    assert bool((normed == norm(x, None).x).all()) == lost


def test_weights_of_a_float32_model_are_rounded_when_activations_are_bfloat16():
    x, w = jnp.ones((1, 1), jnp.bfloat16), jnp.full((1, 1), 1 + 2.0**-10)
    assert float(FLOAT32_WEIGHTS.matmul("ij,jk->ik", x, w, "bfloat16")[0, 0]) == 1.0
    assert float(FLOAT32_WEIGHTS.matmul("ij,jk->ik", x, w, "float32")[0, 0]) == 1 + 2.0**-10
