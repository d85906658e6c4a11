"""pi0.5: image and prompt tokens as a prefix, a chunk of actions as a suffix.

Leaf names and the order of operations follow openpi src/openpi/models/pi0.py (15a9616) with
`pi05=True`: the state reaches the model in the prompt only, the flow time through adaRMS only.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from policy_server.model.attention import attention_mask, token_positions
from policy_server.model.config import IMAGE_KEYS, Pi05Config
from policy_server.model.gemma import Gemma, KeyValues
from policy_server.model.layers import Dense
from policy_server.model.numerics import Numerics
from policy_server.model.siglip import Siglip


class Observation(NamedTuple):
    """One batch of model inputs; images and masks by `IMAGE_KEYS`, images float32 in [-1, 1]."""

    images: dict[str, Float[Array, "b height width 3"]]
    image_masks: dict[str, Bool[Array, " b"]]
    tokens: Int[Array, "b l"]
    token_mask: Bool[Array, "b l"]


class Prefix(NamedTuple):
    """The embedded observation: camera tokens in the order of `IMAGE_KEYS`, then the prompt."""

    tokens: Float[Array, "b s d"]
    valid: Bool[Array, "b s"]
    starts_block: Bool[Array, " s"]
    positions: Int[Array, "b s"]
    mask: Bool[Array, "b s s"]


class Suffix(NamedTuple):
    """The embedded chunk at one flow time, and what the action expert needs to read it."""

    tokens: Float[Array, "b h d"]
    condition: Float[Array, "b d"]
    positions: Int[Array, "b h"]
    mask: Bool[Array, "b h sh"]


class PaliGemma(nnx.Module):
    """Vision tower and language model, with the action expert inside the latter."""

    def __init__(self, numerics: Numerics, config: Pi05Config) -> None:
        self.img = Siglip(numerics, config.siglip, config.paligemma.width)
        self.llm = Gemma(numerics, config.paligemma, config.expert, config.vocab_size)


class Pi05(nnx.Module):
    """The network; `bind` makes one from a checkpoint's leaves."""

    def __init__(self, numerics: Numerics, config: Pi05Config) -> None:
        width = config.expert.width
        self.numerics = numerics
        self.config = config
        self.PaliGemma = PaliGemma(numerics, config)
        self.action_in_proj = Dense(numerics, (config.action_dim,), (width,))
        self.time_mlp_in = Dense(numerics, (width,), (width,))
        self.time_mlp_out = Dense(numerics, (width,), (width,))
        self.action_out_proj = Dense(numerics, (width,), (config.action_dim,))

    def embed_prefix(self, observation: Observation) -> Prefix:
        """Tokens of all cameras, absent ones included but marked, and of the prompt."""
        images = [self.PaliGemma.img(observation.images[key]) for key in IMAGE_KEYS]
        present = [
            jnp.repeat(observation.image_masks[key][:, None], image.shape[1], axis=1)
            for key, image in zip(IMAGE_KEYS, images, strict=True)
        ]
        prompt = self.PaliGemma.llm.embed(observation.tokens)
        valid = jnp.concatenate([*present, observation.token_mask], axis=1)
        starts_block = jnp.zeros(valid.shape[1], bool)  # bidirectional throughout
        return Prefix(
            tokens=jnp.concatenate([*images, prompt], axis=1),
            valid=valid,
            starts_block=starts_block,
            positions=token_positions(valid),
            mask=attention_mask(valid, starts_block),
        )

    def encode_prefix(self, prefix: Prefix) -> tuple[Float[Array, "b s d"], KeyValues]:
        """Run the language expert: its output, and the cache that every flow step reads."""
        return self.PaliGemma.llm.prefix(prefix.tokens, prefix.mask, prefix.positions)

    def embed_suffix(
        self,
        x_t: Float[Array, "b h a"],
        time_embedding: Float[Array, " d"],
        prefix_valid: Bool[Array, "b s"],
    ) -> Suffix:
        """Embed a chunk and the flow time, in float32.

        The chunk is one bidirectional block that also sees every valid token of the prefix; its
        positions go on after the number of those, not after the length of the prefix.
        """
        batch, horizon, _ = x_t.shape
        times = jnp.broadcast_to(time_embedding, (batch, time_embedding.shape[0]))
        hidden = jax.nn.silu(self.time_mlp_in(times, "float32"))
        seen = jnp.repeat(prefix_valid[:, None, :], horizon, axis=1)
        offset = jnp.sum(prefix_valid, axis=1)[:, None]
        return Suffix(
            tokens=self.action_in_proj(x_t, "float32"),
            condition=jax.nn.silu(self.time_mlp_out(hidden, "float32")),
            positions=offset + jnp.arange(horizon)[None, :],
            mask=jnp.concatenate([seen, jnp.ones((batch, horizon, horizon), bool)], axis=2),
        )

    def decode_suffix(self, suffix: Suffix, cache: KeyValues) -> Float[Array, "b h d"]:
        """Run the action expert."""
        return self.PaliGemma.llm.suffix(
            suffix.tokens, cache, suffix.mask, suffix.positions, suffix.condition
        )

    def project_velocity(self, suffix_out: Float[Array, "b h d"]) -> Float[Array, "b h a"]:
        """Velocities; bfloat16 only if both activations and weights are."""
        return self.action_out_proj(suffix_out, self.numerics.promoted)


def abstract(config: Pi05Config, numerics: Numerics) -> Pi05:
    """The model with shapes in place of leaves; costs no memory at any size."""
    return nnx.eval_shape(lambda: Pi05(numerics, config))


def param_shapes(config: Pi05Config) -> dict[str, tuple[int, ...]]:
    """Shape of each leaf of a checkpoint, by its path joined with "/"."""
    state = nnx.state(abstract(config, Numerics("float32", "float32")))
    return {_join(path): variable.shape for path, variable in nnx.to_flat_state(state)}


def bind(config: Pi05Config, numerics: Numerics, params: Mapping[str, Array]) -> Pi05:
    """The model with these leaves, stored in whatever dtype they have.

    Args:
        config: Sizes.
        numerics: See `Numerics`.
        params: Every leaf of `param_shapes(config)`, checked before (`check_tree`).
    """
    graph, state = nnx.split(abstract(config, numerics))
    leaves = [
        (path, variable.replace(params[_join(path)])) for path, variable in nnx.to_flat_state(state)
    ]
    return nnx.merge(graph, nnx.from_flat_state(leaves))


def _join(path: tuple[object, ...]) -> str:
    return "/".join(str(part) for part in path)
