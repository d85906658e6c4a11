"""The compiled sampler: what its answer depends on, and what it does not."""

from typing import Any

import numpy as np
import pytest
from golden_model import golden_config, golden_params, read_npz

from golden_data import COMPACT
from policy_server.errors import ConfigError
from policy_server.model.config import IMAGE_KEYS, TINY
from policy_server.model.sampler import Sampler


def make_sampler(**settings: Any) -> Sampler:
    sampler = Sampler(
        golden_config(COMPACT, "dummy"),
        golden_params(COMPACT, "dummy").items(),
        num_steps=10,
        **settings,
    )
    sampler.compile()
    return sampler


@pytest.fixture(scope="module")
def request_arrays() -> dict[str, Any]:
    inputs = read_npz(COMPACT, "dummy_inputs.npz")
    return {
        "images": {key: inputs[f"image/{key}"][0] for key in IMAGE_KEYS},
        "image_masks": {key: bool(inputs[f"image_mask/{key}"][0]) for key in IMAGE_KEYS},
        "tokens": inputs["tokenized_prompt"][0].astype(np.int64),
        "token_mask": inputs["tokenized_prompt_mask"][0],
        "noise": inputs["noise"][0],
    }


@pytest.fixture(scope="module")
def served() -> Sampler:
    """The stock precision, stored as a CPU server stores it."""
    return make_sampler(compute_dtype="bfloat16", weights="f32")


@pytest.fixture(scope="module")
def actions(served: Sampler, request_arrays: dict[str, Any]) -> np.ndarray:
    return served(**request_arrays)


def test_actions_are_a_finished_float32_array_near_the_recorded_ones(actions: np.ndarray):
    expected = read_npz(COMPACT, "dummy_bf16.npz")["actions"][0]
    assert isinstance(actions, np.ndarray)
    assert (actions.dtype, actions.shape) == (np.float32, (50, 32))
    assert np.abs(actions - expected).max() <= 0.06


def test_float32_actions_are_the_recorded_ones(request_arrays: dict[str, Any]):
    actions = make_sampler(compute_dtype="float32", weights="f32")(**request_arrays)
    expected = read_npz(COMPACT, "dummy_f32.npz")["actions"][0]
    np.testing.assert_allclose(actions, expected, rtol=0, atol=2e-5)


def test_how_the_rounded_weights_are_stored_does_not_change_a_bit(
    actions: np.ndarray, request_arrays: dict[str, Any]
):
    stored_as_bf16 = make_sampler(compute_dtype="bfloat16", weights="bf16")
    np.testing.assert_array_equal(stored_as_bf16(**request_arrays), actions)


def test_a_repeated_request_gives_the_same_bits(
    served: Sampler, actions: np.ndarray, request_arrays: dict[str, Any]
):
    other = dict(request_arrays, noise=-request_arrays["noise"])
    assert not np.array_equal(served(**other), actions)
    np.testing.assert_array_equal(served(**request_arrays), actions)


def test_what_an_absent_camera_shows_does_not_change_a_bit(
    served: Sampler, request_arrays: dict[str, Any]
):
    absent = dict(request_arrays["image_masks"], left_wrist_0_rgb=False)
    black = dict(request_arrays["images"], left_wrist_0_rgb=np.zeros((224, 224, 3), np.uint8))
    with_picture = served(**{**request_arrays, "image_masks": absent})
    with_black = served(**{**request_arrays, "image_masks": absent, "images": black})
    present = served(**{**request_arrays, "images": black})
    np.testing.assert_array_equal(with_picture, with_black)
    assert not np.array_equal(present, with_black)


def test_padding_tokens_do_not_change_a_bit(
    served: Sampler, actions: np.ndarray, request_arrays: dict[str, Any]
):
    tokens, mask = request_arrays["tokens"], request_arrays["token_mask"]
    assert not mask.all()
    padded_otherwise = np.where(mask, tokens, 7)
    answer = served(**{**request_arrays, "tokens": padded_otherwise})
    np.testing.assert_array_equal(answer, actions)


def test_float32_weights_are_rounded_for_a_bfloat16_model(
    actions: np.ndarray, request_arrays: dict[str, Any]
):
    # a quarter of a bfloat16 step away: rounding must bring each weight back
    nudged = {
        path: (leaf.astype(np.float32) * np.float32(1 + 2.0**-10))
        for path, leaf in golden_params(COMPACT, "dummy").items()
    }
    sampler = Sampler(
        golden_config(COMPACT, "dummy"),
        nudged.items(),
        compute_dtype="bfloat16",
        weights="f32",
        num_steps=10,
    )
    np.testing.assert_array_equal(sampler(**request_arrays), actions)


def test_bfloat16_storage_of_a_float32_model_is_refused_with_the_flag():
    with pytest.raises(ConfigError, match=r"use --policy\.weights f32"):
        Sampler(TINY, [], compute_dtype="float32", weights="bf16", num_steps=10)


def test_zero_flow_steps_are_refused():
    with pytest.raises(ConfigError, match="sample_steps is 0"):
        Sampler(TINY, [], compute_dtype="float32", weights="f32", num_steps=0)
