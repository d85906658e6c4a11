"""The recorded forward passes of openpi, and ours on the same weights and inputs."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from golden_data import COMPACT, golden_roots
from policy_server.checkpoints import restore
from policy_server.model.config import IMAGE_KEYS, Pi05Config, config_from_shapes
from policy_server.model.intermediates import intermediates
from policy_server.model.numerics import DTypeName, Numerics
from policy_server.model.pi05 import Observation, bind
from policy_server.model.sampler import COMPILER_OPTIONS, pixel_values

CHECKPOINTS = {"dummy": "ckpt_dummy_plain_bf16", "asym": "ckpt_asym_plain"}
FILE_SUFFIXES: dict[DTypeName, str] = {"float32": "f32", "bfloat16": "bf16"}


@dataclasses.dataclass(frozen=True)
class GoldenPass:
    """One recorded forward pass: `dummy` is one request, `asym` a batch of three."""

    root: Path
    case: str
    dtype: DTypeName

    def __str__(self) -> str:
        where = "compact" if self.root == COMPACT else "full"
        return f"{where}-{self.case}-{self.dtype}"

    @property
    def expected(self) -> dict[str, np.ndarray]:
        """What openpi computed, by name."""
        return read_npz(self.root, f"{self.case}_{FILE_SUFFIXES[self.dtype]}.npz")

    @property
    def expected_dtypes(self) -> dict[str, str]:
        """The dtype of each array that openpi computed."""
        return json.loads((self.root / f"{self.case}_dtypes_{self.dtype}.json").read_text())

    def ours(self) -> dict[str, jax.Array]:
        """What we compute from the recorded inputs, which are the same in every root; cached."""
        return _forward(golden_roots()[-1], self.case, self.dtype)


def golden_passes() -> list[GoldenPass]:
    """Every recorded pass; the committed selection has the small case only."""
    return [
        GoldenPass(root, case, dtype)
        for root in golden_roots()
        for case in (("dummy",) if root == COMPACT else ("dummy", "asym"))
        for dtype in FILE_SUFFIXES
    ]


def read_npz(root: Path, name: str) -> dict[str, np.ndarray]:
    """All arrays of a golden file; skips where the committed selection lacks it."""
    if root == COMPACT and not (root / name).is_file():
        pytest.skip(f"{name} is not in the committed selection")
    with np.load(root / name) as file:
        return dict(file)


@functools.cache
def golden_params(root: Path, case: str) -> dict[str, np.ndarray]:
    """Weights of a case; do not change the dict."""
    return restore(root / CHECKPOINTS[case])


def golden_config(root: Path, case: str) -> Pi05Config:
    """Sizes of a case, the horizon and prompt length from its inputs."""
    inputs = read_npz(root, f"{case}_inputs.npz")
    return config_from_shapes(
        {path: leaf.shape for path, leaf in golden_params(root, case).items()},
        action_horizon=inputs["noise"].shape[1],
        max_token_len=inputs["tokenized_prompt"].shape[1],
    )


def golden_observation(inputs: dict[str, np.ndarray]) -> Observation:
    """The recorded inputs as the model takes them."""
    return Observation(
        images={key: pixel_values(jnp.asarray(inputs[f"image/{key}"])) for key in IMAGE_KEYS},
        image_masks={key: jnp.asarray(inputs[f"image_mask/{key}"]) for key in IMAGE_KEYS},
        tokens=jnp.asarray(inputs["tokenized_prompt"]),
        token_mask=jnp.asarray(inputs["tokenized_prompt_mask"]),
    )


@functools.cache
def _forward(root: Path, case: str, dtype: DTypeName) -> dict[str, jax.Array]:
    numerics, config = Numerics(dtype, dtype), golden_config(root, case)
    inputs = read_npz(root, f"{case}_inputs.npz")
    params = {path: jnp.asarray(leaf, dtype) for path, leaf in golden_params(root, case).items()}

    def run(
        params: dict[str, jax.Array], observation: Observation, noise: jax.Array
    ) -> dict[str, jax.Array]:
        return intermediates(bind(config, numerics, params), observation, noise, num_steps=10)

    arguments = (params, golden_observation(inputs), jnp.asarray(inputs["noise"]))
    compiled = jax.jit(run).lower(*arguments).compile(compiler_options=COMPILER_OPTIONS)
    return compiled(*arguments)
