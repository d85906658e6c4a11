"""Starts real policy servers, as a user does, for tests that run in the client's environment."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import golden_data
from sim_client import launch

REPO = golden_data.REPO
SERVE = str(REPO / "serve.sh")
EVAL = str(REPO / "eval.sh")


def run_command(*words: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Run a command from the repository's root and capture its output."""
    return subprocess.run(
        words, cwd=REPO, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def make_demo_checkpoint(root: Path) -> Path:
    """Write the demo's checkpoint below `root` and return its folder."""
    out = root / "demo"
    command = (SERVE, "checkpoint", "init", "--config", "tiny", "--seed", "0", "--out", str(out))
    done = run_command(*command)
    assert done.returncode == 0, done.stderr
    return out


@contextlib.contextmanager
def demo_server(checkpoints: Path, log: Path, *flags: str) -> Iterator[int]:
    """Serve the demo arm (or what `flags` say) and yield its port."""
    port = launch.free_port()
    arm = () if "--policy.arm" in flags else ("--policy.arm", "demo")
    command = [SERVE, *arm, "--policy.checkpoints-root", str(checkpoints), *flags]
    with launch.running_server(
        [*command, "--port", str(port)], port=port, log=log, ready_timeout_s=240.0
    ):
        yield port
