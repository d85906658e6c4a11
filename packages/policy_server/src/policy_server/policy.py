"""One policy: the request path around the model, as a pure function of a request and its noise."""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jaxtyping import Bool, Float, Float32, Integer, UInt8

from policy_server.arms import Arm
from policy_server.checkpoints import (
    LeafInfo,
    RunningDigest,
    check_tree,
    leaf_shapes,
    restore_leaves,
)
from policy_server.errors import CheckpointError
from policy_server.images import IMAGE_SIZE
from policy_server.model.config import (
    PI05,
    Pi05Config,
    config_from_shapes,
    refuse_other_models,
)
from policy_server.model.sampler import Sampler, WeightStorage
from policy_server.norm_stats_file import load_norm_stats
from policy_server.params_kind import find_params_kind
from policy_server.plan import ServePlan
from policy_server.protocol import Inference
from policy_server.request_path import RequestPath, fit_norm_stats
from policy_server.robots import ROBOTS
from policy_server.tokenizer import Tokenizer


@runtime_checkable  # what the shape checks of the tests ask for
class SampleActions(Protocol):
    """The model: from one request's arrays to a chunk in normalised units."""

    def __call__(
        self,
        images: Mapping[str, UInt8[np.ndarray, "size size 3"]],
        image_masks: Mapping[str, bool],
        tokens: Integer[np.ndarray, " l"],
        token_mask: Bool[np.ndarray, " l"],
        noise: Float[np.ndarray, "h a"],
    ) -> Float[np.ndarray, "h a"]:
        """Give the finished chunk, float32."""
        ...


class Policy:
    """Composes the request path and the model; holds nothing that a query could change."""

    def __init__(self, request_path: RequestPath, sample_actions: SampleActions) -> None:
        """Keep both parts."""
        self._request_path = request_path
        self._sample_actions = sample_actions

    def infer(self, observation: Mapping[str, Any], noise: Float32[np.ndarray, "h a"]) -> Inference:
        """Answer one request.

        Args:
            observation: The robot's keys: images, state, prompt. They stay as they were.
            noise: Start noise of the flow, shape (action_horizon, action_dim).

        Raises:
            RequestError: The observation is not what the robot's table says.
        """
        started = time.perf_counter()
        model_input = self._request_path.prepare(observation)
        prepared = time.perf_counter()
        raw_actions = self._sample_actions(
            model_input.images,
            model_input.image_masks,
            model_input.tokens,
            model_input.token_mask,
            noise,
        )
        sampled = time.perf_counter()
        return Inference(
            actions=self._request_path.finish(raw_actions, model_input),
            warnings=model_input.warnings,
            prepare_ms=(prepared - started) * 1000.0,
            model_ms=(sampled - prepared) * 1000.0,
        )


@dataclasses.dataclass(frozen=True)
class LoadedPolicy:
    """A policy on its device, and what is known of it.

    Attributes:
        policy: Ready to answer.
        request_path: What decides how requests are read.
        checkpoint_digest: Identity of the weights on disk.
        weights: How the rounded weights are stored.
        platform: Where they are: "cpu" or "gpu".
        device_kind: The same in the vendor's words.
    """

    policy: Policy
    request_path: RequestPath
    checkpoint_digest: str
    weights: WeightStorage
    platform: str
    device_kind: str


def load_policy(plan: ServePlan, weights: WeightStorage | None) -> LoadedPolicy:
    """Restore the checkpoint of a plan and put it on the device, leaf after leaf.

    Args:
        plan: From `make_plan`.
        weights: How to store the rounded weights; None chooses by device.

    Raises:
        ConfigError: A file of the plan is damaged, or is not what the arm says.
    """
    request_path = open_request_path(plan)
    config = read_model_config(plan, request_path.tokenizer)
    device = jax.devices()[0]
    if weights is None:
        # XLA's CPU has no bfloat16 products: it would convert all weights at each query
        store_f32 = device.platform == "cpu" or plan.arm.compute_dtype == "float32"
        weights = "f32" if store_f32 else "bf16"
    running = RunningDigest()
    sampler = Sampler(
        config,
        running.watch(restore_leaves(plan.checkpoint_dir)),
        compute_dtype=plan.arm.compute_dtype,
        weights=weights,
        num_steps=plan.arm.sample_steps,
    )
    check_digest(plan, running.hexdigest())
    return LoadedPolicy(
        policy=Policy(request_path, sampler),
        request_path=request_path,
        checkpoint_digest=running.hexdigest(),
        weights=weights,
        platform=device.platform,
        device_kind=device.device_kind,
    )


def open_request_path(plan: ServePlan) -> RequestPath:
    """Read norm stats and tokenizer.

    Raises:
        ConfigError: One of them is damaged, or the stats do not fit the arm.
    """
    arm, robot = plan.arm, ROBOTS[plan.arm.robot]
    stats = fit_norm_stats(
        load_norm_stats(plan.norm_stats_path),
        robot=robot,
        norm_mode=arm.norm_mode,
        state_padding=arm.state_padding,
        action_dim=arm.action_dim,
    )
    return RequestPath(
        robot=robot,
        stats=stats,
        norm_mode=arm.norm_mode,
        state_padding=arm.state_padding,
        discrete_state_input=arm.discrete_state_input,
        action_dim=arm.action_dim,
        action_horizon=arm.action_horizon,
        max_token_len=arm.max_token_len,
        tokenizer=Tokenizer(plan.tokenizer_path),
    )


def read_model_config(plan: ServePlan, tokenizer: Tokenizer) -> Pi05Config:
    """Read the model's sizes from the checkpoint's tree, without its weights.

    Raises:
        CheckpointError: The tree is not the arm's model.
    """
    arm = plan.arm
    config = check_leaves(leaf_shapes(plan.checkpoint_dir), arm)
    for what, found, expected in (
        ("action_dim", config.action_dim, arm.action_dim),
        ("image size", config.siglip.image_size, IMAGE_SIZE),
    ):
        if found != expected:
            raise CheckpointError(
                f"the checkpoint {plan.checkpoint_dir} has {what} {found}, arm {arm.name!r} needs "
                f"{expected}; give another checkpoint with --policy.dir."
            )
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"the tokenizer {plan.tokenizer_path} has {tokenizer.vocab_size} pieces, the "
            f"checkpoint {plan.checkpoint_dir} embeds {config.vocab_size}; give its own with "
            "--policy.tokenizer."
        )
    return config


def check_leaves(leaves: Mapping[str, LeafInfo], arm: Arm) -> Pi05Config:
    """The sizes of the arm's model, to which these leaves must belong.

    Raises:
        CheckpointError: They are those of another model or size, or have LoRA adapters.
    """
    refuse_other_models(leaves)
    lengths = {"action_horizon": arm.action_horizon, "max_token_len": arm.max_token_len}
    if arm.model == "pi05":
        config = dataclasses.replace(PI05, action_dim=arm.action_dim, **lengths)
    else:
        config = config_from_shapes({path: leaf.shape for path, leaf in leaves.items()}, **lengths)
    check_tree(leaves, config)
    return config


def check_digest(plan: ServePlan, found: str) -> None:
    """Compare the checkpoint's digest with the arm's pin and with what vouches for its kind.

    Raises:
        CheckpointError: The arm is pinned to other weights, or the mark in the directory is that of
            other weights.
    """
    pinned = plan.arm.checkpoint_digest
    if pinned and found != pinned:
        raise CheckpointError(
            f"the checkpoint {plan.checkpoint_dir} has digest {found}, arm {plan.arm.name!r} is "
            f"pinned to {pinned}; give the pinned one with --policy.dir, or correct "
            "checkpoint_digest in the table of arms."
        )
    find_params_kind(plan.checkpoint_dir).check_digest(found)
