"""The vision tower: SigLIP (a ViT without class token or pooling) and its projection.

Leaf names and arithmetic follow openpi src/openpi/models/siglip.py (15a9616), which builds on
flax.linen; the places where its dtypes matter are marked.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from policy_server.model.config import SiglipConfig
from policy_server.model.layers import Dense, param
from policy_server.model.numerics import Numerics, einsum

LAYER_NORM_EPS = 1e-6  # flax.linen.LayerNorm's default


class LayerNorm(nnx.Module):
    """Layer norm with float32 statistics, variance as E[x^2] - E[x]^2 like flax.linen."""

    def __init__(self, numerics: Numerics, width: int, stack: tuple[int, ...] = ()) -> None:
        self.numerics = numerics
        self.scale = param(*stack, width)
        self.bias = param(*stack, width)

    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Normalise the last axis in float32, then round to the compute dtype."""
        x = x.astype(jnp.float32)
        mean = jnp.mean(x, axis=-1, keepdims=True)
        mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
        variance = jnp.maximum(0.0, mean_square - jnp.square(mean))
        factor = jax.lax.rsqrt(variance + LAYER_NORM_EPS) * self.scale[...].astype(jnp.float32)
        y = (x - mean) * factor + self.bias[...].astype(jnp.float32)
        return y.astype(self.numerics.compute)


class SelfAttention(nnx.Module):
    """Bidirectional attention in the compute dtype throughout, softmax included."""

    def __init__(self, numerics: Numerics, config: SiglipConfig, stack: tuple[int, ...]) -> None:
        width, heads = (config.width,), (config.num_heads, config.head_dim)
        self.numerics = numerics
        self.head_dim = config.head_dim
        self.query = Dense(numerics, width, heads, stack)
        self.key = Dense(numerics, width, heads, stack)
        self.value = Dense(numerics, width, heads, stack)
        self.out = Dense(numerics, heads, width, stack)

    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Attend over all tokens of one image."""
        dtype = self.numerics.compute
        # bfloat16 rounds sqrt(72) to 8.5
        query = self.query(x, dtype) / jnp.asarray(math.sqrt(self.head_dim), dtype)
        logits = einsum("bqnh,bknh->bnqk", query, self.key(x, dtype))
        probabilities = jax.nn.softmax(logits, axis=-1)
        return self.out(einsum("bnqk,bknh->bqnh", probabilities, self.value(x, dtype)), dtype)


class Mlp(nnx.Module):
    """Two affine layers with a tanh-approximated gelu between them."""

    def __init__(self, numerics: Numerics, config: SiglipConfig, stack: tuple[int, ...]) -> None:
        self.numerics = numerics
        self.Dense_0 = Dense(numerics, (config.width,), (config.mlp_dim,), stack)
        self.Dense_1 = Dense(numerics, (config.mlp_dim,), (config.width,), stack)

    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Apply the layers in the compute dtype."""
        dtype = self.numerics.compute
        return self.Dense_1(jax.nn.gelu(self.Dense_0(x, dtype), approximate=True), dtype)


class EncoderBlock(nnx.Module):
    """One pre-norm block; built with the leaves of all layers stacked, called with those of one."""

    def __init__(self, numerics: Numerics, config: SiglipConfig) -> None:
        stack = (config.depth,)
        self.LayerNorm_0 = LayerNorm(numerics, config.width, stack)
        self.MultiHeadDotProductAttention_0 = SelfAttention(numerics, config, stack)
        self.LayerNorm_1 = LayerNorm(numerics, config.width, stack)
        self.MlpBlock_0 = Mlp(numerics, config, stack)

    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Attention and MLP, each added to its input."""
        x = x + self.MultiHeadDotProductAttention_0(self.LayerNorm_0(x))
        return x + self.MlpBlock_0(self.LayerNorm_1(x))


class Transformer(nnx.Module):
    """All blocks, then a layer norm."""

    def __init__(self, numerics: Numerics, config: SiglipConfig) -> None:
        self.encoderblock = EncoderBlock(numerics, config)
        self.encoder_norm = LayerNorm(numerics, config.width)

    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Run the blocks one after the other."""
        x, _ = jax.lax.scan(lambda x, block: (block(x), None), x, self.encoderblock)
        return self.encoder_norm(x)


class PatchEmbedding(nnx.Module):
    """The stem: a convolution whose stride is its size, hence a product over cut-out patches."""

    def __init__(self, numerics: Numerics, config: SiglipConfig) -> None:
        self.numerics = numerics
        self.grid, self.patch = config.grid, config.patch_size
        self.kernel = param(self.patch, self.patch, 3, config.width)
        self.bias = param(config.width)

    def __call__(self, images: Float[Array, "b height width 3"]) -> Float[Array, "b g g d"]:
        """Embed each patch, in float32 whatever the compute dtype."""
        n, p = self.grid, self.patch
        patches = images.reshape(-1, n, p, n, p, 3)
        product = self.numerics.matmul("bipjqc,pqcd->bijd", patches, self.kernel[...], "float32")
        return product + self.bias[...].astype(jnp.float32)


class Siglip(nnx.Module):
    """Images to tokens of the language model's width, which are not rescaled afterwards."""

    def __init__(self, numerics: Numerics, config: SiglipConfig, out_width: int) -> None:
        self.numerics = numerics
        self.embedding = PatchEmbedding(numerics, config)
        self.pos_embedding = param(1, config.num_tokens, config.width)
        self.Transformer = Transformer(numerics, config)
        self.head = Dense(numerics, (config.width,), (out_width,))

    def add_positions(self, stem: Float[Array, "b g g d"]) -> Float[Array, "b t d"]:
        """Flatten the grid row by row and add the learned positions, in float32."""
        tokens = stem.reshape(stem.shape[0], -1, stem.shape[-1])
        return tokens + self.pos_embedding[...].astype(jnp.float32)

    def encode(self, tokens: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
        """Run the transformer in the compute dtype."""
        return self.Transformer(tokens.astype(self.numerics.compute))

    def __call__(self, images: Float[Array, "b height width 3"]) -> Float[Array, "b t out"]:
        """Tokens of images with values in [-1, 1], one token per patch, in the compute dtype."""
        encoded = self.encode(self.add_positions(self.embedding(images)))
        return self.head(encoded, self.numerics.compute)
