"""The language expert (Gemma 2B) and the action expert (300M) with shared attention.

In inference only one expert runs at a time: the language expert over the prefix, then the action
expert over the suffix, reading the prefix's keys and values. Leaf names and arithmetic follow
openpi src/openpi/models/gemma.py (15a9616). The action expert's norms are adaptive (adaRMS).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from policy_server.model.attention import apply_rope, attend
from policy_server.model.config import GemmaConfig
from policy_server.model.layers import Dense, param
from policy_server.model.numerics import Numerics

RMS_NORM_EPS = 1e-6  # gemma.py, RMSNorm

Condition = Float[Array, "b c"] | None
Gate = Float[Array, "b 1 d"] | None


class KeyValues(NamedTuple):
    """Keys (rotated) and values; with a leading layer axis for a whole expert."""

    key: Float[Array, "*layers b s k h"]
    value: Float[Array, "*layers b s k h"]


class Normed(NamedTuple):
    """A normalised activation and what its residual branch is multiplied with, if anything."""

    x: Float[Array, "b t d"]
    gate: Gate


def _rms_normalize(x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    """Divide by the root mean square of the last axis, in float32."""
    x = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return x * jnp.reciprocal(jnp.sqrt(mean_square + RMS_NORM_EPS))


class RMSNorm(nnx.Module):
    """Scale by `1 + scale`; the sum is formed in the dtype that the weights stand for."""

    def __init__(self, numerics: Numerics, width: int, stack: tuple[int, ...] = ()) -> None:
        self.numerics = numerics
        self.scale = param(*stack, width)

    def __call__(self, x: Float[Array, "b t d"], condition: Condition) -> Normed:
        """Normalise, ignoring the condition; no gate."""
        scaled = _rms_normalize(x) * (1 + self.numerics.as_weights(self.scale[...]))
        return Normed(scaled.astype(self.numerics.compute), None)


class AdaptiveRMSNorm(nnx.Module):
    """Scale, shift and gate (in this order) are an affine function of the condition."""

    def __init__(self, numerics: Numerics, width: int, stack: tuple[int, ...] = ()) -> None:
        self.numerics = numerics
        self.Dense_0 = Dense(numerics, (width,), (3 * width,), stack)

    def __call__(self, x: Float[Array, "b t d"], condition: Condition) -> Normed:
        """Normalise and modulate; the gate is for the residual, without an added 1."""
        assert condition is not None, "the action expert runs with the flow time as condition"
        modulation = self.Dense_0(condition, self.numerics.compute)[:, None, :]
        scale, shift, gate = jnp.split(modulation, 3, axis=-1)
        modulated = _rms_normalize(x) * (1 + scale) + shift
        return Normed(modulated.astype(self.numerics.compute), gate)


Norm = RMSNorm | AdaptiveRMSNorm


class Projection(nnx.Module):
    """The single leaf `w` of an einsum without bias."""

    def __init__(self, *shape: int) -> None:
        self.w = param(*shape)


class FeedForward(nnx.Module):
    """Gated gelu MLP; branch 0 of `gating_einsum` passes the gelu, branch 1 is linear."""

    def __init__(self, numerics: Numerics, config: GemmaConfig) -> None:
        self.numerics = numerics
        self.gating_einsum = param(config.depth, 2, config.width, config.mlp_dim)
        self.linear = param(config.depth, config.mlp_dim, config.width)

    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Apply the MLP of one layer in the compute dtype."""
        dtype = self.numerics.compute
        gating = self.gating_einsum[...]
        gate = self.numerics.matmul("btd,df->btf", x, gating[0], dtype)
        linear = self.numerics.matmul("btd,df->btf", x, gating[1], dtype)
        hidden = jax.nn.gelu(gate, approximate=True) * linear
        return self.numerics.matmul("btf,fd->btd", hidden, self.linear[...], dtype)


class Block(nnx.Module):
    """One layer of one expert; holds all layers stacked, is called with the leaves of one."""

    def __init__(
        self,
        numerics: Numerics,
        q: Projection,
        kv: Projection,
        out: Projection,
        mlp: FeedForward,
        norms: tuple[Norm, Norm],
    ) -> None:
        self.numerics = numerics
        self.q, self.kv, self.out, self.mlp = q, kv, out, mlp
        self.pre_attention_norm, self.pre_ffw_norm = norms

    def __call__(
        self,
        x: Float[Array, "b t d"],
        cache: KeyValues | None,
        mask: Bool[Array, "b t s"],
        positions: Int[Array, "b t"],
        condition: Condition,
    ) -> tuple[Float[Array, "b t d"], KeyValues]:
        """Run the layer; returns its output and the keys and values of its own tokens."""
        normed, gate = self.pre_attention_norm(x, condition)
        attended, own = self._attention(normed, cache, mask, positions)
        x = _gated_residual(x, attended, gate)
        normed, gate = self.pre_ffw_norm(x, condition)
        return _gated_residual(x, self.mlp(normed), gate), own

    def _attention(
        self,
        x: Float[Array, "b t d"],
        cache: KeyValues | None,
        mask: Bool[Array, "b t s"],
        positions: Int[Array, "b t"],
    ) -> tuple[Float[Array, "b t d"], KeyValues]:
        dtype, matmul = self.numerics.compute, self.numerics.matmul
        query = apply_rope(matmul("btd,ndh->btnh", x, self.q.w[...], dtype), positions)
        query = query * query.shape[-1] ** -0.5
        key, value = matmul("btd,akdh->abtkh", x, self.kv.w[...], dtype)
        own = KeyValues(apply_rope(key, positions), value)
        seen = own if cache is None else jax.tree.map(_append_tokens, cache, own)
        attended = attend(query, seen.key, seen.value, mask)
        return matmul("btnh,nhd->btd", attended, self.out.w[...], dtype), own


def _append_tokens(
    cached: Float[Array, "b s k h"], own: Float[Array, "b t k h"]
) -> Float[Array, "b st k h"]:
    return jnp.concatenate([cached, own], axis=1)


def _gated_residual(
    x: Float[Array, "b t d"], branch: Float[Array, "b t d"], gate: Gate
) -> Float[Array, "b t d"]:
    return x + branch if gate is None else x + branch * gate


class Attention(nnx.Module):
    """The attention projections of both experts, under openpi's names."""

    def __init__(self, paligemma: GemmaConfig, expert: GemmaConfig) -> None:
        self.q_einsum, self.kv_einsum, self.attn_vec_einsum = _projections(paligemma)
        self.q_einsum_1, self.kv_einsum_1, self.attn_vec_einsum_1 = _projections(expert)


def _projections(config: GemmaConfig) -> tuple[Projection, Projection, Projection]:
    """Query, key-value and output projection of all layers of one expert."""
    depth, width, head_dim = config.depth, config.width, config.head_dim
    return (
        Projection(depth, config.num_heads, width, head_dim),
        Projection(depth, 2, config.num_kv_heads, width, head_dim),
        Projection(depth, config.num_heads, head_dim, width),
    )


class Layers(nnx.Module):
    """All layers of both experts, stacked along axis 0 of each leaf."""

    def __init__(self, numerics: Numerics, paligemma: GemmaConfig, expert: GemmaConfig) -> None:
        self.numerics = numerics
        self.attn = Attention(paligemma, expert)
        self.mlp = FeedForward(numerics, paligemma)
        self.mlp_1 = FeedForward(numerics, expert)
        language, action = (paligemma.width, (paligemma.depth,)), (expert.width, (expert.depth,))
        self.pre_attention_norm = RMSNorm(numerics, *language)
        self.pre_ffw_norm = RMSNorm(numerics, *language)
        self.pre_attention_norm_1 = AdaptiveRMSNorm(numerics, *action)
        self.pre_ffw_norm_1 = AdaptiveRMSNorm(numerics, *action)

    def language(self) -> Block:
        """The language expert's leaves."""
        norms = (self.pre_attention_norm, self.pre_ffw_norm)
        attn = self.attn
        return Block(
            self.numerics, attn.q_einsum, attn.kv_einsum, attn.attn_vec_einsum, self.mlp, norms
        )

    def action(self) -> Block:
        """The action expert's leaves."""
        norms = (self.pre_attention_norm_1, self.pre_ffw_norm_1)
        attn = self.attn
        return Block(
            self.numerics,
            attn.q_einsum_1,
            attn.kv_einsum_1,
            attn.attn_vec_einsum_1,
            self.mlp_1,
            norms,
        )


class Embedder(nnx.Module):
    """The table of token embeddings."""

    def __init__(self, numerics: Numerics, vocab_size: int, width: int) -> None:
        self.numerics = numerics
        self.input_embedding = param(vocab_size, width)

    def __call__(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        """Rows of the table times sqrt(width), the factor rounded to the table's dtype."""
        rows = self.numerics.as_weights(self.input_embedding[...][tokens])
        return rows * jnp.sqrt(jnp.float32(rows.shape[-1])).astype(rows.dtype)


class Gemma(nnx.Module):
    """Both experts and their final norms."""

    def __init__(
        self, numerics: Numerics, paligemma: GemmaConfig, expert: GemmaConfig, vocab_size: int
    ) -> None:
        self.numerics = numerics
        self.embedder = Embedder(numerics, vocab_size, paligemma.width)
        self.layers = Layers(numerics, paligemma, expert)
        self.final_norm = RMSNorm(numerics, paligemma.width)
        self.final_norm_1 = AdaptiveRMSNorm(numerics, expert.width)

    def embed(self, tokens: Int[Array, "b t"]) -> Float[Array, "b t d"]:
        """Token embeddings in the compute dtype."""
        return self.embedder(tokens).astype(self.numerics.compute)

    def prefix(
        self,
        tokens: Float[Array, "b t d"],
        mask: Bool[Array, "b t t"],
        positions: Int[Array, "b t"],
    ) -> tuple[Float[Array, "b t d"], KeyValues]:
        """Run the language expert; returns its normed output and each layer's keys and values."""

        def layer(x: Float[Array, "b t d"], block: Block):
            return block(x, None, mask, positions, None)

        x = tokens.astype(self.numerics.compute)
        x, key_values = jax.lax.scan(layer, x, self.layers.language())
        return self.final_norm(x, None).x, key_values

    def suffix(
        self,
        tokens: Float[Array, "b t d"],
        cache: KeyValues,
        mask: Bool[Array, "b t s"],
        positions: Int[Array, "b t"],
        condition: Float[Array, "b d"],
    ) -> Float[Array, "b t d"]:
        """Run the action expert over the suffix, after the cached tokens of the prefix."""

        def layer(x: Float[Array, "b t d"], block_and_cache: tuple[Block, KeyValues]):
            block, layer_cache = block_and_cache
            return block(x, layer_cache, mask, positions, condition)[0], None

        x = tokens.astype(self.numerics.compute)
        x, _ = jax.lax.scan(layer, x, (self.layers.action(), cache))
        return self.final_norm_1(x, condition).x
