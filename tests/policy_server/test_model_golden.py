"""The model against openpi's recorded forward passes, stage by stage."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_model import (
    GoldenPass,
    golden_config,
    golden_observation,
    golden_params,
    golden_passes,
    read_npz,
)

from golden_data import COMPACT, FULL, golden_roots
from policy_server.checkpoints import digest
from policy_server.model.numerics import Numerics
from policy_server.model.pi05 import bind
from policy_server.model.sampler import denoise

# Largest |difference|, for values up to 7; the recordings' README allows 2e-5 on actions and v_t.
FLOAT32_TOLERANCES = {
    "actions": 2e-5,
    "x0_traced": 2e-5,
    "x_t": 2e-5,
    "v_t": 2e-5,
    "prefix/tokens": 1e-5,
    "prefix/out": 3e-5,
    "prefix/kv_k": 3e-5,
    "prefix/kv_v": 3e-5,
    "siglip/base/stem": 3e-6,
    "siglip/base/with_posemb": 3e-6,
    "siglip/base/block0_out": 1e-5,
    "siglip/base/encoded": 1e-5,
    "siglip/tokens/base_0_rgb": 1e-5,
    "siglip/tokens/left_wrist_0_rgb": 1e-5,
    "siglip/tokens/right_wrist_0_rgb": 1e-5,
    "step0/suffix_tokens": 2e-6,
    "step0/time_emb": 1e-6,
    "step0/adarms_cond": 2e-6,
    "step0/suffix_out": 2e-5,
}
BFLOAT16_TOLERANCES = {
    "actions": 0.06,
    "x_t": 0.06,
    "v_t": 0.2,
    "siglip/tokens/base_0_rgb": 0.1,
    "step0/adarms_cond": 2e-6,  # computed in float32
    "step0/suffix_out": 0.2,
}
BFLOAT16_MEAN_TOLERANCE = 0.012  # of actions


@pytest.mark.parametrize("golden", golden_passes(), ids=str)
def test_every_recorded_intermediate_is_reproduced(golden: GoldenPass):
    tolerances = FLOAT32_TOLERANCES if golden.dtype == "float32" else BFLOAT16_TOLERANCES
    ours = {name: np.asarray(array, np.float64) for name, array in golden.ours().items()}
    ours["x0_traced"] = ours["actions"]  # openpi's unrolled loop, run beside its own sampler
    too_far = {}
    for name, expected in golden.expected.items():
        assert ours[name].shape == expected.shape, name
        deviation = np.abs(ours[name] - expected).max()
        if deviation > tolerances.get(name, 0.0):  # masks, positions, times and lookups are exact
            too_far[name] = deviation
    assert too_far == {}


@pytest.mark.parametrize(
    "golden", [golden for golden in golden_passes() if golden.dtype == "bfloat16"], ids=str
)
def test_bfloat16_actions_deviate_little_on_average(golden: GoldenPass):
    ours = np.asarray(golden.ours()["actions"])
    assert np.abs(ours - golden.expected["actions"]).mean() <= BFLOAT16_MEAN_TOLERANCE


@pytest.mark.parametrize("golden", golden_passes(), ids=str)
def test_every_intermediate_has_the_recorded_dtype(golden: GoldenPass):
    ours = {name: str(array.dtype) for name, array in golden.ours().items()}
    expected = {name: dtype for name, dtype in golden.expected_dtypes.items() if name in ours}
    assert {name: ours[name] for name in expected} == expected
    assert {"prefix/kv_k", "step0/adarms_cond", "step0/suffix_out", "v_t"} <= expected.keys()


@pytest.mark.parametrize(
    "root", golden_roots(), ids=lambda root: "compact" if root == COMPACT else "full"
)
def test_each_number_of_flow_steps_gives_the_recorded_actions(root: Path):
    recorded = read_npz(root, "asym_num_steps_f32.npz")
    inputs = read_npz(root, "asym_inputs.npz")
    config, numerics = golden_config(root, "asym"), Numerics("float32", "float32")
    params = {path: jnp.asarray(leaf) for path, leaf in golden_params(root, "asym").items()}
    model = bind(config, numerics, params)
    prefix = jax.jit(lambda observation: model.embed_prefix(observation))(
        golden_observation(inputs)
    )
    _, cache = jax.jit(lambda prefix: model.encode_prefix(prefix))(prefix)
    deviations = {}
    for name, expected in recorded.items():
        num_steps = int(name.removeprefix("steps"))
        actions = jax.jit(
            lambda noise, steps: denoise(model, prefix.valid, cache, noise, steps).x_t[-1],
            static_argnums=1,
        )(inputs["noise"], num_steps)
        deviations[num_steps] = np.abs(np.asarray(actions) - expected).max()
    assert set(deviations) == {1, 2, 3, 5, 7, 10, 20}
    assert max(deviations.values()) <= 2e-5, deviations


@pytest.mark.skipif(not FULL.is_dir(), reason="the whole set is not here")
@pytest.mark.parametrize(
    "name", ["dummy_inputs.npz", "dummy_f32.npz", "dummy_bf16.npz", "posemb_rope_rng.npz"]
)
def test_the_committed_selection_is_an_exact_copy_of_the_recording(name: str):
    recorded = read_npz(FULL, name)
    for key, array in read_npz(COMPACT, name).items():
        assert array.dtype == recorded[key].dtype
        np.testing.assert_array_equal(array, recorded[key])


@pytest.mark.skipif(not FULL.is_dir(), reason="the whole set is not here")
def test_the_committed_weights_are_the_recorded_ones():
    assert digest(golden_params(COMPACT, "dummy")) == digest(golden_params(FULL, "dummy"))
