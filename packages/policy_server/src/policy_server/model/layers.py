"""The affine layer with flax's leaf names, used by both towers and the projections."""

from collections.abc import Sequence

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from policy_server.model.numerics import DTypeName, Numerics


def param(*shape: int) -> nnx.Param:
    """A leaf of that shape; the values come from a checkpoint, never from here."""
    return nnx.Param(jnp.zeros(shape, jnp.float32))


class Dense(nnx.Module):
    """`x @ kernel + bias` over the last `len(in_dims)` axes, leaves `kernel` and `bias`.

    Args:
        stack: Leading axes of stacked layers, removed by the scan that runs them.
        in_dims: Contracted axes.
        out_dims: Axes of the result.
    """

    def __init__(
        self,
        numerics: Numerics,
        in_dims: Sequence[int],
        out_dims: Sequence[int],
        stack: Sequence[int] = (),
    ) -> None:
        self.numerics = numerics
        self.kernel = param(*stack, *in_dims, *out_dims)
        self.bias = param(*stack, *out_dims)
        contracted, kept = "xyz"[: len(in_dims)], "uvw"[: len(out_dims)]
        self.equation = f"...{contracted},{contracted}{kept}->...{kept}"

    def __call__(self, x: Float[Array, "..."], dtype: DTypeName) -> Float[Array, "..."]:
        """Product and sum are each rounded to `dtype`."""
        product = self.numerics.matmul(self.equation, x, self.kernel[...], dtype)
        return product + self.bias[...].astype(dtype)
