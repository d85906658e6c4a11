"""Every intermediate of a forward pass by name, for comparing implementations."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from policy_server.model.config import IMAGE_KEYS
from policy_server.model.flow import make_schedule
from policy_server.model.pi05 import Observation, Pi05
from policy_server.model.sampler import denoise


def intermediates(
    model: Pi05, observation: Observation, noise: Float[Array, "b h a"], num_steps: int
) -> dict[str, Array]:
    """Run the model's own parts one after the other and keep what they return.

    The names are those of the golden vectors: `pre/*` is what enters, `siglip/base/*` are stages
    of the first camera, `prefix/*` the language expert, `step0/*` the first flow step, and `times`,
    `v_t`, `x_t` and `actions` the trajectory. `*_rowsum` counts the keys that each query may see.
    """
    prefix = model.embed_prefix(observation)
    prefix_out, cache = model.encode_prefix(prefix)
    schedule = make_schedule(num_steps, model.config.expert.width)
    first_embedding = jnp.asarray(schedule.embeddings[0])
    suffix = model.embed_suffix(noise, first_embedding, prefix.valid)
    trajectory = denoise(model, prefix.valid, cache, noise, num_steps)
    return {
        **_vision(model, observation),
        "lang/embedded": model.PaliGemma.llm.embed(observation.tokens),
        "prefix/tokens": prefix.tokens,
        "prefix/mask": prefix.valid,
        "prefix/ar_mask": prefix.starts_block,
        "prefix/positions": prefix.positions,
        "prefix/attn_mask_rowsum": jnp.sum(prefix.mask, axis=-1),
        "prefix/out": prefix_out,
        "prefix/kv_k": cache.key,
        "prefix/kv_v": cache.value,
        "step0/suffix_tokens": suffix.tokens,
        "step0/time_emb": jnp.broadcast_to(first_embedding, suffix.condition.shape),
        "step0/adarms_cond": suffix.condition,
        "step0/positions": suffix.positions,
        "step0/full_attn_mask_rowsum": jnp.sum(suffix.mask, axis=-1),
        "step0/suffix_out": model.decode_suffix(suffix, cache),
        "times": jnp.asarray(schedule.times),
        "v_t": trajectory.v_t,
        "x_t": trajectory.x_t,
        "actions": trajectory.x_t[-1],
    }


def _vision(model: Pi05, observation: Observation) -> dict[str, Array]:
    """The stages of the first camera, and the tokens of each."""
    tower = model.PaliGemma.img
    pre_masks = {f"pre/mask/{key}": observation.image_masks[key] for key in IMAGE_KEYS}
    stem = tower.embedding(observation.images[IMAGE_KEYS[0]])
    with_positions = tower.add_positions(stem)
    first_block = jax.tree.map(lambda leaf: leaf[0], tower.Transformer.encoderblock)
    return {
        **pre_masks,
        f"pre/image/{IMAGE_KEYS[0]}": observation.images[IMAGE_KEYS[0]],
        "siglip/base/stem": stem,
        "siglip/base/with_posemb": with_positions,
        "siglip/base/block0_out": first_block(with_positions.astype(model.numerics.compute)),
        "siglip/base/encoded": tower.encode(with_positions),
        **{f"siglip/tokens/{key}": tower(observation.images[key]) for key in IMAGE_KEYS},
    }
