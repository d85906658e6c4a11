"""Sizes: the full model's tree, and reading sizes from a checkpoint's."""

import dataclasses
import math

import pytest

from policy_server.errors import CheckpointError
from policy_server.model.config import PI05, TINY, config_from_shapes
from policy_server.model.pi05 import param_shapes

_NORM = (27, 1152)
_MODULATION = {"kernel": (18, 1024, 3072), "bias": (18, 3072)}
# facts of openpi 15a9616 at full size; layers are stacked along axis 0
FULL_SIZE_LEAVES: dict[str, dict[str, tuple[int, ...]]] = {
    "PaliGemma/img/embedding": {"kernel": (14, 14, 3, 1152), "bias": (1152,)},
    "PaliGemma/img": {"pos_embedding": (1, 256, 1152)},
    "PaliGemma/img/Transformer/encoderblock/LayerNorm_0": {"scale": _NORM, "bias": _NORM},
    "PaliGemma/img/Transformer/encoderblock/LayerNorm_1": {"scale": _NORM, "bias": _NORM},
    "PaliGemma/img/Transformer/encoderblock/MultiHeadDotProductAttention_0": {
        "query/kernel": (27, 1152, 16, 72),
        "query/bias": (27, 16, 72),
        "key/kernel": (27, 1152, 16, 72),
        "key/bias": (27, 16, 72),
        "value/kernel": (27, 1152, 16, 72),
        "value/bias": (27, 16, 72),
        "out/kernel": (27, 16, 72, 1152),
        "out/bias": (27, 1152),
    },
    "PaliGemma/img/Transformer/encoderblock/MlpBlock_0": {
        "Dense_0/kernel": (27, 1152, 4304),
        "Dense_0/bias": (27, 4304),
        "Dense_1/kernel": (27, 4304, 1152),
        "Dense_1/bias": (27, 1152),
    },
    "PaliGemma/img/Transformer/encoder_norm": {"scale": (1152,), "bias": (1152,)},
    "PaliGemma/img/head": {"kernel": (1152, 2048), "bias": (2048,)},
    "PaliGemma/llm/embedder": {"input_embedding": (257152, 2048)},
    "PaliGemma/llm/layers/attn": {
        "q_einsum/w": (18, 8, 2048, 256),
        "q_einsum_1/w": (18, 8, 1024, 256),
        "kv_einsum/w": (18, 2, 1, 2048, 256),
        "kv_einsum_1/w": (18, 2, 1, 1024, 256),
        "attn_vec_einsum/w": (18, 8, 256, 2048),
        "attn_vec_einsum_1/w": (18, 8, 256, 1024),
    },
    "PaliGemma/llm/layers/mlp": {
        "gating_einsum": (18, 2, 2048, 16384),
        "linear": (18, 16384, 2048),
    },
    "PaliGemma/llm/layers/mlp_1": {
        "gating_einsum": (18, 2, 1024, 4096),
        "linear": (18, 4096, 1024),
    },
    "PaliGemma/llm/layers/pre_attention_norm": {"scale": (18, 2048)},
    "PaliGemma/llm/layers/pre_ffw_norm": {"scale": (18, 2048)},
    "PaliGemma/llm/layers/pre_attention_norm_1/Dense_0": _MODULATION,
    "PaliGemma/llm/layers/pre_ffw_norm_1/Dense_0": _MODULATION,
    "PaliGemma/llm/final_norm": {"scale": (2048,)},
    "PaliGemma/llm/final_norm_1/Dense_0": {"kernel": (1024, 3072), "bias": (3072,)},
    "action_in_proj": {"kernel": (32, 1024), "bias": (1024,)},
    "time_mlp_in": {"kernel": (1024, 1024), "bias": (1024,)},
    "time_mlp_out": {"kernel": (1024, 1024), "bias": (1024,)},
    "action_out_proj": {"kernel": (1024, 32), "bias": (32,)},
}
LENGTHS = {"action_horizon": 50, "max_token_len": 200}


def test_the_full_size_model_has_exactly_openpis_51_leaves_and_3353433872_parameters():
    shapes = param_shapes(PI05)
    assert shapes == {
        f"{module}/{leaf}": shape
        for module, leaves in FULL_SIZE_LEAVES.items()
        for leaf, shape in leaves.items()
    }
    assert len(shapes) == 51
    assert sum(math.prod(shape) for shape in shapes.values()) == 3_353_433_872


@pytest.mark.parametrize("config", [PI05, TINY], ids=["full", "tiny"])
def test_all_sizes_are_read_back_from_the_leaves(config):
    assert config_from_shapes(param_shapes(config), **LENGTHS) == config


def test_experts_of_different_width_are_read_each_on_its_own():
    narrow = dataclasses.replace(TINY.expert, width=40, mlp_dim=96)
    config = dataclasses.replace(TINY, expert=narrow, action_dim=14)
    assert config_from_shapes(param_shapes(config), **LENGTHS) == config


def test_experts_that_cannot_attend_to_each_other_are_refused():
    shapes = param_shapes(TINY)
    shapes["PaliGemma/llm/layers/attn/q_einsum_1/w"] = (5, 8, 64, 16)
    with pytest.raises(CheckpointError, match="depth 4 and an action expert with depth 5"):
        config_from_shapes(shapes, **LENGTHS)


@pytest.mark.parametrize("leaf", ["state_proj/kernel", "action_time_mlp_in/kernel"])
def test_a_pi0_checkpoint_is_named_as_such(leaf: str):
    with pytest.raises(CheckpointError, match="holds a pi0 checkpoint"):
        config_from_shapes({**param_shapes(TINY), leaf: (32, 64)}, **LENGTHS)


@pytest.mark.parametrize(
    "leaf", ["attn/q_einsum/lora_a", "mlp/gating_einsum_lora_b", "mlp_1/linear_lora_a"]
)
def test_lora_leaves_are_refused_with_the_reason(leaf: str):
    shapes = {**param_shapes(TINY), f"PaliGemma/llm/layers/{leaf}": (4, 64, 16)}
    with pytest.raises(CheckpointError, match=r"1 LoRA leaves .* would give wrong actions"):
        config_from_shapes(shapes, **LENGTHS)


def test_a_missing_leaf_that_tells_a_size_is_named():
    shapes = param_shapes(TINY)
    del shapes["PaliGemma/img/pos_embedding"]
    with pytest.raises(CheckpointError, match="no leaf PaliGemma/img/pos_embedding"):
        config_from_shapes(shapes, **LENGTHS)


def test_a_leaf_of_another_rank_is_named():
    shapes = {**param_shapes(TINY), "action_in_proj/kernel": (32,)}
    with pytest.raises(CheckpointError, match=r"action_in_proj/kernel has shape \(32,\)"):
        config_from_shapes(shapes, **LENGTHS)
