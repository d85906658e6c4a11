"""From one request's arrays to a chunk of actions: one compiled program, fed with the weights."""

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Integer, UInt8

from policy_server.errors import ConfigError
from policy_server.model.config import IMAGE_KEYS, Pi05Config
from policy_server.model.flow import Trajectory, integrate, make_schedule
from policy_server.model.gemma import KeyValues
from policy_server.model.numerics import DTypeName, Numerics
from policy_server.model.pi05 import Observation, Pi05, bind

PIXEL_VALUES = np.arange(256, dtype=np.uint8).astype(np.float32) / 255.0 * 2.0 - 1.0
"""What each uint8 level becomes, by numpy's arithmetic; XLA's own division differs by 1e-7."""

# With XLA's default, equivalent programs differ in their last bfloat16 bits, and so do actions.
COMPILER_OPTIONS: dict[str, str | bool] = {"xla_allow_excess_precision": False}

WeightStorage = Literal["f32", "bf16"]
_STORAGE_DTYPES = {"f32": np.dtype(np.float32), "bf16": np.dtype(jnp.bfloat16)}
_XLA_ALIGNMENT = 64  # bytes; XLA's CPU copies an array that does not start at a multiple
_ROUNDING_BLOCK = 1 << 24  # elements; bounds the scratch memory of rounding a large leaf


class Sampler:
    """Turns one request into actions; built once, compiled once, then called from one thread.

    With `compute_dtype="bfloat16"` every leaf is rounded to bfloat16, as openpi's server does, and
    `weights` says how the rounded numbers are stored: on a CPU "f32" saves a conversion per query,
    on a GPU "bf16" halves the memory; the actions are the same. With "float32" nothing is rounded.
    """

    def __init__(
        self,
        config: Pi05Config,
        params: Iterable[tuple[str, np.ndarray]],
        *,
        compute_dtype: DTypeName,
        weights: WeightStorage,
        num_steps: int,
    ) -> None:
        """Put the weights on the default device, one leaf after the other.

        No leaf is held here after it is stored, since a full-size checkpoint does not fit twice in
        the memory of a small machine.

        Args:
            config: Sizes.
            params: Every leaf of `param_shapes(config)`, float32 or bfloat16, in any order.
            compute_dtype: dtype of activations, and what the weights are rounded to.
            weights: dtype in which they are stored.
            num_steps: Flow steps per request.

        Raises:
            ConfigError: `num_steps` is below 1, or bfloat16 storage would round float32 weights.
        """
        if num_steps < 1:
            raise ConfigError(f"sample_steps is {num_steps}, expected at least 1 (arms.toml)")
        if compute_dtype == "float32" and weights == "bf16":
            raise ConfigError(
                "--policy.weights bf16 would round the weights of an arm whose compute_dtype is "
                "float32; use --policy.weights f32"
            )
        self.config = config
        self.num_steps = num_steps
        self.numerics = Numerics(compute=compute_dtype, weights=compute_dtype)
        self._storage = _STORAGE_DTYPES[weights]
        self._params: dict[str, Array] = {}
        for path, leaf in params:
            stored = round_weights(leaf, self.numerics.weights, self._storage)
            del leaf
            self._params[path] = jax.device_put(stored).block_until_ready()
            del stored  # before the next one is read
        self._compiled: jax.stages.Compiled | None = None

    def compile(self) -> None:
        """Compile the program; the first call does it otherwise."""
        config, array = self.config, jax.ShapeDtypeStruct
        size = config.siglip.image_size
        params = {path: array(p.shape, p.dtype) for path, p in self._params.items()}
        images = {key: array((1, size, size, 3), jnp.uint8) for key in IMAGE_KEYS}
        image_masks = {key: array((1,), jnp.bool_) for key in IMAGE_KEYS}
        tokens = array((1, config.max_token_len), jnp.int32)
        token_mask = array((1, config.max_token_len), jnp.bool_)
        noise = array((1, config.action_horizon, config.action_dim), jnp.float32)
        lowered = jax.jit(self._program).lower(
            params, images, image_masks, tokens, token_mask, noise
        )
        self._compiled = lowered.compile(compiler_options=COMPILER_OPTIONS)

    def __call__(
        self,
        images: Mapping[str, UInt8[np.ndarray, "size size 3"]],
        image_masks: Mapping[str, bool],
        tokens: Integer[np.ndarray, " l"],
        token_mask: Bool[np.ndarray, " l"],
        noise: Float[np.ndarray, "h a"],
    ) -> Float[np.ndarray, "h a"]:
        """Sample one chunk.

        Args:
            images: One per key of `IMAGE_KEYS`, 224x224 at the usual image size.
            image_masks: Whether each camera exists; an absent one is never attended to.
            tokens: Prompt, padded to `max_token_len`.
            token_mask: True for the prompt's own tokens.
            noise: Start of the flow, float32, (action_horizon, action_dim).

        Returns:
            Normalised actions, float32, (action_horizon, action_dim), finished when returned.
        """
        if self._compiled is None:
            self.compile()
        assert self._compiled is not None
        actions = self._compiled(
            self._params,
            {key: images[key][None] for key in IMAGE_KEYS},
            {key: np.array([image_masks[key]], bool) for key in IMAGE_KEYS},
            tokens[None].astype(np.int32),
            token_mask[None],
            noise[None],
        )
        return np.asarray(actions)[0]

    def _program(
        self,
        params: dict[str, Array],
        images: dict[str, UInt8[Array, "b size size 3"]],
        image_masks: dict[str, Bool[Array, " b"]],
        tokens: Integer[Array, "b l"],
        token_mask: Bool[Array, "b l"],
        noise: Float[Array, "b h a"],
    ) -> Float[Array, "b h a"]:
        model = bind(self.config, self.numerics, params)
        pixels = {key: pixel_values(image) for key, image in images.items()}
        observation = Observation(pixels, image_masks, tokens, token_mask)
        return sample(model, observation, noise, self.num_steps).x_t[-1]


def sample(
    model: Pi05, observation: Observation, noise: Float[Array, "b h a"], num_steps: int
) -> Trajectory:
    """Encode the prefix once, then integrate the flow; a batch of any size."""
    prefix = model.embed_prefix(observation)
    _, cache = model.encode_prefix(prefix)
    return denoise(model, prefix.valid, cache, noise, num_steps)


def denoise(
    model: Pi05,
    prefix_valid: Bool[Array, "b s"],
    cache: KeyValues,
    noise: Float[Array, "b h a"],
    num_steps: int,
) -> Trajectory:
    """Integrate the flow after an encoded prefix."""

    def velocity(
        x_t: Float[Array, "b h a"], time_embedding: Float[Array, " d"]
    ) -> Float[Array, "b h a"]:
        suffix = model.embed_suffix(x_t, time_embedding, prefix_valid)
        return model.project_velocity(model.decode_suffix(suffix, cache))

    return integrate(velocity, noise, make_schedule(num_steps, model.config.expert.width))


def pixel_values(images: UInt8[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Map uint8 levels to [-1, 1] by `PIXEL_VALUES`."""
    table = jnp.asarray(PIXEL_VALUES)
    return table.at[images.astype(jnp.int32)].get(mode="promise_in_bounds")


def round_weights(
    leaf: np.ndarray, rounded_to: DTypeName, storage: np.dtype
) -> Float[np.ndarray, "..."]:
    """Round a leaf to `rounded_to` and store the result as `storage`, without a second copy.

    Args:
        leaf: float32 or bfloat16.
        rounded_to: dtype of the values; "float32" keeps them.
        storage: dtype of the result, at least as wide.
    """
    if leaf.dtype == storage and (rounded_to == "float32" or leaf.dtype != np.float32):
        return leaf
    stored = _empty_aligned(leaf.shape, storage)
    source, target = leaf.reshape(-1), stored.reshape(-1)
    for start in range(0, source.size, _ROUNDING_BLOCK):
        block = slice(start, start + _ROUNDING_BLOCK)
        target[block] = source[block].astype(rounded_to)
    return stored


def _empty_aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array that `jax.device_put` takes over on a CPU, where else it would copy it."""
    n_bytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(n_bytes + _XLA_ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _XLA_ALIGNMENT
    return memory[start : start + n_bytes].view(dtype).reshape(shape)
