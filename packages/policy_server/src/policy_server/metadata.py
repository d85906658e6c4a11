"""The server's announcement: everything that its actions depend on, as plain msgpack types."""

import hashlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from policy_server.determinism import Determinism
from policy_server.model.numerics import FLOAT32_PRECISION
from policy_server.model.sampler import COMPILER_OPTIONS
from policy_server.plan import ServePlan
from policy_server.policy import LoadedPolicy
from policy_server.protocol import PROTOCOL_NAME, PROTOCOL_VERSION, NoiseSpec

# Distributions by the name they have in the announcement.
VERSIONED = {
    "policy_server": "policy-server",
    "jax": "jax",
    "jaxlib": "jaxlib",
    "flax": "flax",
    "orbax": "orbax-checkpoint",
    "numpy": "numpy",
    "pillow": "pillow",
    "sentencepiece": "sentencepiece",
}
GIT_TIMEOUT_S = 10


def make_metadata(
    plan: ServePlan,
    loaded: LoadedPolicy,
    *,
    determinism: Determinism,
    selfcheck_sha256: str,
    noise: NoiseSpec,
) -> dict[str, Any]:
    """Build the first frame of every connection; the same for the whole life of a server."""
    arm, path = plan.arm, loaded.request_path
    return {
        "protocol": {"name": PROTOCOL_NAME, "version": PROTOCOL_VERSION},
        "arm": arm.name,
        "action_horizon": arm.action_horizon,
        "action_dim": arm.action_dim,
        "replan_steps": arm.replan_steps,
        "robot": path.robot.describe(),
        "norm_stats": {
            "mode": arm.norm_mode,
            "asset": plan.norm_stats_path.parent.name,
            "sha256": path.stats.sha256,
            "width": path.stats.state.width,
            "state_padding": arm.state_padding,
            "padded": list(path.stats.notes),
        },
        "checkpoint": {
            "name": checkpoint_name(plan.checkpoint_dir),
            "digest": loaded.checkpoint_digest,
            "params_kind": plan.params_kind,
            "step": training_step(plan.checkpoint_dir),
        },
        "tokenizer": {"sha256": path.tokenizer.sha256},
        "transforms_sha256": transforms_sha256(path.describe()),
        "determinism": {
            "xla_flags": determinism.xla_flags,
            "deterministic": determinism.deterministic,
            "why": determinism.why,
            "autotune_sha256": determinism.autotune_sha256,
            "excess_precision": COMPILER_OPTIONS["xla_allow_excess_precision"],
            "matmul_precision": {"float32": FLOAT32_PRECISION.name.lower()},
            "selfcheck_sha256": selfcheck_sha256,
        },
        "versions": software_versions(),
        "device": {"platform": loaded.platform, "kind": loaded.device_kind},
        "noise": {"required": noise.required, "shape": list(noise.shape), "dtype": "float32"},
        "max_batch": 1,
        "server_revision": server_revision(),
        "sample_steps": arm.sample_steps,
        "compute_dtype": arm.compute_dtype,
        "weights": loaded.weights,
        "protocol_deviation": list(plan.deviations),
    }


def transforms_sha256(settings: Mapping[str, Any]) -> str:
    """SHA-256 of the settings that decide how a request is read and a reply is written."""
    canonical = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def checkpoint_name(checkpoint_dir: Path) -> str:
    """The directory's name, with its parent's where it is only a training step's number."""
    directory = checkpoint_dir.resolve()
    if directory.name == "params":
        directory = directory.parent
    return "/".join(directory.parts[-2:]) if directory.name.isdigit() else directory.name


def training_step(checkpoint_dir: Path) -> int | None:
    """The number that names a training step's directory, None for another name."""
    name = checkpoint_name(checkpoint_dir).rpartition("/")[2]
    return int(name) if name.isdigit() else None


def software_versions() -> dict[str, str]:
    """Versions of what computes the actions."""
    versions = {key: importlib.metadata.version(name) for key, name in VERSIONED.items()}
    return {**versions, "python": platform.python_version()}


def server_revision() -> str:
    """The commit of the source tree that this module is part of, else the package's version.

    A tree with uncommitted changes gets "-dirty" behind the commit.
    """
    here = Path(__file__)
    git = ["git", "-C", str(here.parent)]
    tracked = _run_git([*git, "ls-files", "--error-unmatch", here.name])
    described = _run_git([*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"])
    if tracked is None or described is None:
        return importlib.metadata.version("policy-server")
    return described


def _run_git(command: list[str]) -> str | None:
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()
