"""The commands themselves; importing this module imports JAX, so its flags must be set before."""

import dataclasses
import logging
import socket

from policy_server.checkpoints import checkpoint_digest
from policy_server.config import Serve
from policy_server.determinism import Determinism
from policy_server.metadata import make_metadata
from policy_server.plan import ServePlan
from policy_server.policy import (
    check_digest,
    load_policy,
    open_request_path,
    read_model_config,
    warm_up,
)
from policy_server.protocol import NoiseSpec
from policy_server.server import PolicyServer, serve_until_signal
from policy_server.terminal import say

logger = logging.getLogger(__name__)


def run_serve(
    command: Serve, plan: ServePlan, listener: socket.socket, *, determinism: Determinism
) -> None:
    """Load, warm up, open the port and serve until SIGTERM or SIGINT.

    Args:
        command: The command line.
        plan: What it asks for.
        listener: The bound socket; it starts to listen when a query can be answered.
        determinism: What the flags of this process promise.
    """
    arm = plan.arm
    loaded = load_policy(plan, command.policy.weights)
    if not warm_up(loaded):
        determinism = dataclasses.replace(
            determinism, deterministic=False, why="two equal requests at the start differed in bits"
        )
    noise = NoiseSpec(
        shape=(arm.action_horizon, arm.action_dim),
        required=command.policy.require_noise,
        seed=command.policy.seed,
    )
    metadata = make_metadata(plan, loaded, determinism=determinism, noise=noise)
    logger.info(
        "arm %s: checkpoint %s, norm stats %s (%s), tokenizer %s, on %s%s%s",
        arm.name,
        loaded.checkpoint_digest,
        loaded.request_path.stats.sha256,
        arm.norm_mode,
        loaded.request_path.tokenizer.sha256,
        loaded.device_kind,
        "" if determinism.deterministic else f"; not deterministic: {determinism.why}",
        "".join(f"; deviates: {deviation}" for deviation in plan.deviations),
    )
    server = PolicyServer(loaded.policy.infer, metadata, noise)
    serve_until_signal(server, listener)


def run_check(plan: ServePlan) -> None:
    """Refuse what a start would refuse; weights are read only where a pin needs them."""
    request_path = open_request_path(plan)
    read_model_config(plan, request_path.tokenizer)
    if plan.arm.checkpoint_digest:
        check_digest(plan, checkpoint_digest(plan.checkpoint_dir))
    say(f"arm {plan.arm.name} can be served from {plan.checkpoint_dir}")
