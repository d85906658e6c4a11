"""A policy is a function of request and noise; another checkpoint than the arm's is refused."""

import dataclasses

import numpy as np
import pytest
from served_arm import CHECKPOINT, options, write_arms

from policy_server.checkpoint_write import init_checkpoint
from policy_server.checkpoints import digest, restore
from policy_server.errors import CheckpointError, NormStatsError, TokenizerError
from policy_server.model.config import TINY
from policy_server.plan import make_plan
from policy_server.policy import (
    Policy,
    load_policy,
    open_request_path,
    read_model_config,
)
from policy_server.selfcheck import make_request

NOISE = np.linspace(-1, 1, 50 * 32, dtype=np.float32).reshape(50, 32)


@pytest.fixture
def plan(tmp_path):
    return make_plan(options(write_arms(tmp_path)))


@pytest.fixture
def path(plan):
    return open_request_path(plan)


def echo_noise(images, image_masks, tokens, token_mask, noise):
    """A model that answers with the noise it was given."""
    return noise


def test_the_models_chunk_comes_back_in_the_robots_units(path):
    result = Policy(path, echo_noise).infer(make_request(path.robot, seed=0), NOISE)
    assert (result.actions.shape, result.actions.dtype) == ((50, 12), np.float64)
    q01, q99 = path.stats.actions.q01[:12], path.stats.actions.q99[:12]
    expected = (NOISE[:, :12] + 1) / 2 * (q99 - q01 + 1e-6) + q01
    np.testing.assert_allclose(result.actions, expected, rtol=1e-12)


def test_the_request_is_left_as_it_was(path):
    observation = make_request(path.robot, seed=0)
    for value in observation.values():
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
    before = dict(observation)
    Policy(path, echo_noise).infer(observation, NOISE)
    assert observation == before


def test_the_model_gets_what_the_request_path_prepared(path):
    seen = {}

    def remember(images, image_masks, tokens, token_mask, noise):
        seen.update(images=images, image_masks=image_masks, tokens=tokens, token_mask=token_mask)
        return noise

    observation = make_request(path.robot, seed=0)
    Policy(path, remember).infer(observation, NOISE)
    expected = path.prepare(observation)
    assert seen["image_masks"] == expected.image_masks
    np.testing.assert_equal(seen["images"], expected.images)
    np.testing.assert_array_equal(seen["tokens"], expected.tokens)
    np.testing.assert_array_equal(seen["token_mask"], expected.token_mask)


def test_a_state_far_out_is_warned_of_in_the_reply(path):
    observation = {**make_request(path.robot, seed=0), "observation/state": np.full(16, 1e3)}
    assert Policy(path, echo_noise).infer(observation, NOISE).warnings


def test_weights_are_stored_for_the_device_unless_told(plan):
    stored = [load_policy(plan, weights).weights for weights in (None, "bf16")]
    assert stored == ["f32", "bf16"]  # tests run on a CPU


def test_a_full_size_arm_refuses_a_tiny_checkpoint(plan):
    full = dataclasses.replace(plan, arm=dataclasses.replace(plan.arm, model="pi05"))
    with pytest.raises(CheckpointError, match="not the checkpoint of this model"):
        read_model_config(full, open_request_path(plan).tokenizer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action_dim": 14}, "has action_dim 14, arm 'mine' needs 32"),
        ({"vocab_size": 700}, "has 715 pieces, the checkpoint .* embeds 700"),
        ({"siglip": dataclasses.replace(TINY.siglip, image_size=112)}, "has image size 112"),
    ],
)
def test_a_checkpoint_of_other_sizes_than_the_arms_is_refused(plan, tmp_path, change, message):
    init_checkpoint(dataclasses.replace(TINY, **change), tmp_path / "other", seed=0)
    other = dataclasses.replace(plan, checkpoint_dir=tmp_path / "other")
    with pytest.raises(CheckpointError, match=message):
        read_model_config(other, open_request_path(plan).tokenizer)


def test_only_the_pinned_weights_are_served(plan):
    found = digest(restore(CHECKPOINT))
    for pin, refused in ((found, False), ("0" * 64, True)):
        arm = dataclasses.replace(plan.arm, checkpoint_digest=pin)
        pinned = dataclasses.replace(plan, arm=arm)
        if refused:
            with pytest.raises(CheckpointError, match=rf"digest {found}, .* pinned to 0000"):
                load_policy(pinned, None)
        else:
            assert load_policy(pinned, None).checkpoint_digest == found


def test_damaged_stats_and_tokenizers_are_refused_by_name(plan, tmp_path):
    (tmp_path / "bad").write_text("{}")
    with pytest.raises(NormStatsError, match="bad"):
        open_request_path(dataclasses.replace(plan, norm_stats_path=tmp_path / "bad"))
    with pytest.raises(TokenizerError, match="bad"):
        open_request_path(dataclasses.replace(plan, tokenizer_path=tmp_path / "bad"))
