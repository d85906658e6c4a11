"""What a run's numbers depend on, written to run.json before the first episode."""

import hashlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim_client.errors import ConfigError
from sim_client.results import SCHEMA, write_json

# The server's announcement, without what does not decide a bit of a reply.
SERVER_KEYS = (
    "arm", "action_horizon", "action_dim", "robot", "norm_stats", "checkpoint", "tokenizer",
    "transforms_sha256", "sample_steps", "compute_dtype", "weights", "max_batch", "determinism",
    "versions", "device", "server_revision", "protocol", "protocol_deviation",
)  # fmt: skip

PACKAGES = ("sim-client", "mujoco", "robosuite", "numpy", "scipy", "pillow", "av", "openpi-client")


def client_versions() -> dict[str, str]:
    """Versions of Python and of the packages that can change a bit of an episode."""
    versions = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **versions}


def client_revision() -> str:
    """The commit of this checkout, with "+changes" where files differ, or the package's version."""
    here = Path(__file__).parent
    try:
        commit = _git(here, "rev-parse", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return importlib.metadata.version("sim-client")
    return commit + ("+changes" if changed else "")


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def provenance_digest(provenance: Mapping[str, Any]) -> str:
    """SHA-256 of the provenance in canonical JSON."""
    return hashlib.sha256(json.dumps(provenance, sort_keys=True).encode()).hexdigest()


def write_run(log_dir: Path, provenance: Mapping[str, Any], request: Mapping[str, Any]) -> None:
    """Write run.json: the provenance, its digest and what was asked for."""
    write_json(
        log_dir / "run.json",
        {
            "schema": SCHEMA,
            "provenance": dict(provenance),
            "provenance_sha256": provenance_digest(provenance),
            "request": dict(request),
        },
    )


def check_same_provenance(log_dir: Path, provenance: Mapping[str, Any]) -> None:
    """Refuse to continue a run whose numbers depend on other things than ours would.

    Raises:
        ConfigError: run.json is missing or unreadable, or names what differs.
    """
    path = log_dir / "run.json"
    try:
        recorded = json.loads(path.read_bytes())["provenance"]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"--resume needs {path}, which cannot be read ({error}); choose another --args.log-dir"
        ) from error
    # through JSON once, so that tuples and lists compare equal
    ours = json.loads(json.dumps(provenance))
    if recorded != ours:
        changed = ", ".join(_differences(recorded, ours))
        raise ConfigError(
            f"{log_dir} is a run with other provenance ({changed}); continue it with what it was "
            "started with, or choose another --args.log-dir"
        )


def _differences(theirs: Any, ours: Any, path: str = "") -> list[str]:
    """The paths at which two JSON values differ."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return [
            found
            for key in sorted(theirs.keys() | ours.keys())
            for found in _differences(
                theirs.get(key), ours.get(key), f"{path}.{key}" if path else key
            )
        ]
    return [] if theirs == ours else [f"{path}: {theirs} there, {ours} now"]
