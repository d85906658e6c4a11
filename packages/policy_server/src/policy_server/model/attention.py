"""Who may attend to whom, rotary positions, and attention with few key heads.

Sources: openpi src/openpi/models/pi0.py, make_attn_mask, and src/openpi/models/gemma.py, Attention
and _apply_rope (15a9616).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from policy_server.model.numerics import einsum

MASKED_LOGIT = -2.3819763e38  # gemma.py; a row with no key at all becomes uniform, never NaN
ROPE_MAX_WAVELENGTH = 10_000


def attention_mask(
    valid: Bool[Array, "b t"], starts_block: Bool[Array, " t"]
) -> Bool[Array, "b t t"]:
    """Let a token see the valid tokens of its own block and of the blocks before it.

    Args:
        valid: False for padding and absent cameras, which see nothing and are not seen.
        starts_block: True where a block begins; all False means one bidirectional block.

    Returns:
        `mask[b, query, key]`.
    """
    block = jnp.cumsum(starts_block)
    visible = block[None, None, :] <= block[None, :, None]
    return visible & valid[:, None, :] & valid[:, :, None]


def token_positions(valid: Bool[Array, "b t"]) -> Int[Array, "b t"]:
    """Positions that only valid tokens advance; -1 before the first valid one."""
    return jnp.cumsum(valid, axis=1) - 1


def apply_rope(x: Float[Array, "b t n h"], positions: Int[Array, "b t"]) -> Float[Array, "b t n h"]:
    """Rotate the two halves of each head by position-dependent angles, in float32.

    The pairs are (i, i + h/2), not neighbours; the result has the dtype of `x`.
    """
    head_dim = x.shape[-1]
    exponents = np.arange(0, head_dim, 2) / head_dim
    wavelengths = jnp.asarray((ROPE_MAX_WAVELENGTH**exponents).astype(np.float32))
    angles = (*positions.shape, head_dim // 2)
    # Without the barrier XLA multiplies by the reciprocals: 1e-5 off at positions near 1000.
    wavelengths = jax.lax.optimization_barrier(jnp.broadcast_to(wavelengths, angles))
    radians = (positions[..., None] / wavelengths)[:, :, None, :]
    sin, cos = jnp.sin(radians), jnp.cos(radians)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)


def attend(
    query: Float[Array, "b t n h"],
    key: Float[Array, "b s k h"],
    value: Float[Array, "b s k h"],
    mask: Bool[Array, "b t s"],
) -> Float[Array, "b t n h"]:
    """Attention with n query heads over k shared key heads; `query` is scaled already.

    Logits and softmax are float32; the probabilities are rounded to the dtype of `query`.
    """
    b, t, n, h = query.shape
    grouped = query.reshape(b, t, key.shape[2], -1, h)
    logits = einsum("btkgh,bskh->bkgts", grouped, key, preferred_element_type=jnp.float32)
    logits = jnp.where(mask[:, None, None, :, :], logits, MASKED_LOGIT)
    probabilities = jax.nn.softmax(logits, axis=-1).astype(query.dtype)
    return einsum("bkgts,bskh->btkgh", probabilities, value).reshape(b, t, n, h)
