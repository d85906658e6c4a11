"""The commands themselves; importing this module imports JAX, so its flags must be set before."""

import dataclasses
import logging
import socket
from collections.abc import Mapping
from typing import Any

import jax

from policy_server.access import Access
from policy_server.checks import check_arm
from policy_server.comparison import compare
from policy_server.config import CompareSelfcheck, PolicyOptions, Serve, Tune
from policy_server.determinism import SELFCHECK_DIFFERED, Determinism, read_autotune
from policy_server.errors import ConfigError
from policy_server.metadata import make_metadata
from policy_server.plan import ServePlan
from policy_server.policy import (
    LoadedPolicy,
    load_policy,
)
from policy_server.protocol import NoiseSpec
from policy_server.selfcheck import run_selfcheck
from policy_server.server import PolicyServer, serve_until_signal
from policy_server.terminal import say
from policy_server.tuned import TunedFor, check_record, write_record

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class ReadyPolicy:
    """A policy that can answer, and its announcement.

    Attributes:
        loaded: On its device, with every program compiled.
        determinism: What the flags promise and the self-check did not disprove.
        noise: What the noise of a request must look like.
        metadata: The announcement.
    """

    loaded: LoadedPolicy
    determinism: Determinism
    noise: NoiseSpec
    metadata: Mapping[str, Any]


def make_ready(options: PolicyOptions, plan: ServePlan, determinism: Determinism) -> ReadyPolicy:
    """Load, compile and check a policy.

    Raises:
        ConfigError: A file of the plan is damaged, or a flag for GPUs is given without one.
    """
    if options.autotune is not None:
        require_gpu("--policy.autotune")
    loaded = load_policy(plan, options.weights)
    if options.autotune is not None:
        check_record(options.autotune, TunedFor.now(loaded))
    selfcheck = run_selfcheck(loaded)
    if not selfcheck.repeats:
        determinism = dataclasses.replace(determinism, deterministic=False, why=SELFCHECK_DIFFERED)
    noise = NoiseSpec(
        shape=(plan.arm.action_horizon, plan.arm.action_dim),
        required=options.require_noise,
        seed=options.seed,
    )
    metadata = make_metadata(
        plan,
        loaded,
        determinism=determinism,
        selfcheck_sha256=selfcheck.sha256,
        noise=noise,
    )
    return ReadyPolicy(loaded, determinism, noise, metadata)


def require_gpu(what: str) -> None:
    """Refuse what only a GPU can do.

    Args:
        what: The flag or the command.

    Raises:
        ConfigError: JAX runs on a CPU here.
    """
    if jax.devices()[0].platform == "cpu":
        raise ConfigError(f"{what} needs a GPU; a CPU chooses no kernels by timing them.")


def run_serve(
    command: Serve,
    plan: ServePlan,
    listener: socket.socket,
    *,
    determinism: Determinism,
    access: Access,
) -> None:
    """Load, check, open the port and serve until SIGTERM or SIGINT.

    Args:
        command: The command line.
        plan: What it asks for.
        listener: The bound socket; it starts to listen when a query can be answered.
        determinism: What the flags of this process promise.
        access: What clients must bring.
    """
    ready = make_ready(command.policy, plan, determinism)
    arm, loaded, determinism = plan.arm, ready.loaded, ready.determinism
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
    server = PolicyServer(
        loaded.policy.infer, ready.metadata, ready.noise, api_key=access.api_key, tls=access.tls
    )
    serve_until_signal(server, listener)


def run_compare(
    command: CompareSelfcheck,
    plan: ServePlan,
    published: Mapping[str, Any],
    *,
    determinism: Determinism,
) -> bool:
    """Check the arm here and compare it with what a server publishes.

    Returns:
        Whether both gave the same bits.
    """
    own = make_ready(command.policy, plan, determinism).metadata
    return compare(own, published, command.against)


def run_tune(command: Tune, plan: ServePlan) -> None:
    """Compile every program of an arm while XLA writes down the kernels that it chooses.

    Raises:
        ConfigError: There is no GPU, the file exists already, or XLA wrote none.
    """
    require_gpu("policy-server tune")
    if command.out.exists():
        raise ConfigError(f"--out {command.out} exists; choose another file or remove it.")
    loaded = load_policy(plan, command.policy.weights)
    run_selfcheck(loaded)
    digest = read_autotune(command.out)
    write_record(command.out, TunedFor.now(loaded))
    say(f"{command.out} sha256 {digest}")
    say(f"tuned on {loaded.device_kind} for checkpoint {loaded.checkpoint_digest}")


def run_check(options: PolicyOptions) -> bool:
    """Print a verdict per line; returns whether a start would be accepted."""
    verdicts = check_arm(options)
    for line in verdicts:
        say(f"{line.verdict:4}  {line.subject:12}  {line.detail}")
    return all(line.verdict == "PASS" for line in verdicts)
