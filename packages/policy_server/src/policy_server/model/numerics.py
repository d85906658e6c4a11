"""In which dtype each product is formed, and which dtype the weights stand for."""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

DTypeName = Literal["float32", "bfloat16"]
FLOAT32_PRECISION = jax.lax.Precision.HIGHEST  # a GPU's default would be TF32


@dataclasses.dataclass(frozen=True)
class Numerics:
    """The two settings that decide a model's arithmetic.

    openpi restores every leaf as bfloat16 when it serves, and some of its arithmetic follows the
    dtype of the leaf (sqrt(2048) becomes 45.25, `1 + scale` is rounded). On a CPU the same rounded
    numbers are better stored as float32. So the dtype that the weights *stand for* is a setting of
    its own, and their storage dtype decides nothing.

    Attributes:
        compute: dtype of activations, openpi's `dtype` of a model config.
        weights: dtype that the weights stand for; with "bfloat16" every stored value must be
            representable in it.
    """

    compute: DTypeName
    weights: DTypeName

    @property
    def promoted(self) -> DTypeName:
        """What an activation combined with a weight is, when neither is converted first."""
        both_bf16 = self.compute == "bfloat16" and self.weights == "bfloat16"
        return "bfloat16" if both_bf16 else "float32"

    def as_weights(self, w: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The weights in the dtype that they stand for."""
        return w.astype(self.weights)

    def matmul(
        self, equation: str, x: Float[Array, "..."], w: Float[Array, "..."], dtype: DTypeName
    ) -> Float[Array, "..."]:
        """`einsum(equation, x, w)` with both operands and the result in `dtype`.

        Weights stored as float32 that stand for bfloat16 are not converted: a bfloat16 product is
        a float32 product of the same operands, rounded once, which is how XLA forms it on a CPU.
        """
        x = x.astype(dtype)
        stored_wide = w.dtype == jnp.float32 and self.weights == "bfloat16"
        if dtype == "bfloat16" and stored_wide:
            x = x.astype(jnp.float32)
        else:
            w = w.astype(dtype)
        return einsum(equation, x, w).astype(dtype)


def einsum(
    equation: str,
    x: Float[Array, "..."],
    y: Float[Array, "..."],
    preferred_element_type: type | None = None,
) -> Float[Array, "..."]:
    """`jnp.einsum` that never lets a float32 product fall to a GPU's TF32."""
    precision = FLOAT32_PRECISION if x.dtype == jnp.float32 else None
    return jnp.einsum(
        equation, x, y, precision=precision, preferred_element_type=preferred_element_type
    )
