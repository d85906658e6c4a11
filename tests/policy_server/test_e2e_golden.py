"""A recorded request, through our request path and our model, gets the reply that openpi gave."""

import functools
from typing import Literal

import numpy as np
import pytest
from golden_requests import ACTION_DIM, MAX_TOKEN_LEN, GoldenRequest, golden_requests

from golden_data import COMPACT
from policy_server.checkpoints import leaf_shapes, restore_leaves
from policy_server.model.config import config_from_shapes
from policy_server.model.sampler import Sampler
from policy_server.norm_stats import FieldStats

CHECKPOINT = COMPACT / "ckpt_dummy_plain_bf16"


@functools.cache
def make_sampler(action_horizon: int, compute_dtype: Literal["float32", "bfloat16"]) -> Sampler:
    shapes = {path: leaf.shape for path, leaf in leaf_shapes(CHECKPOINT).items()}
    config = config_from_shapes(shapes, action_horizon=action_horizon, max_token_len=MAX_TOKEN_LEN)
    assert config.action_dim == ACTION_DIM
    return Sampler(
        config,
        restore_leaves(CHECKPOINT),
        compute_dtype=compute_dtype,
        weights="f32",
        num_steps=10,
    )


def answer(
    case: GoldenRequest,
    arrays: dict[str, np.ndarray],
    compute_dtype: Literal["float32", "bfloat16"],
) -> np.ndarray:
    request, recorded = case.request(arrays)
    case.need(recorded and "noise" in arrays, "the request's images and noise")
    path = case.path()
    model_input = path.prepare(request)
    raw_actions = make_sampler(case.action_horizon, compute_dtype)(
        model_input.images,
        model_input.image_masks,
        model_input.tokens,
        model_input.token_mask,
        arrays["noise"],
    )
    return path.finish(raw_actions, model_input)


def unit(stats: FieldStats, norm_mode: str) -> np.ndarray:
    """How much one normalised unit is in the robot's units."""
    if norm_mode == "zscore":
        return stats.std
    q01, q99 = stats.quantiles()
    return (q99 - q01) / 2


cases = pytest.mark.parametrize("case", list(golden_requests()), ids=str)


@cases
def test_the_reply_in_float32_is_that_of_openpi(case: GoldenRequest):
    arrays = case.arrays
    actions = answer(case, arrays, "float32")
    np.testing.assert_allclose(actions, arrays["actions_f32"], rtol=0, atol=1e-4, strict=True)


@cases
def test_the_reply_in_bfloat16_is_that_of_openpi(case: GoldenRequest):
    arrays = case.arrays
    actions = answer(case, arrays, "bfloat16")

    path = case.path()
    one = unit(path.stats.actions, case.norm_mode)[: path.robot.action_width]
    error = np.abs(actions - arrays["actions_bf16"]) / one
    assert error.max() <= 0.06
    assert error.mean() <= 0.012
