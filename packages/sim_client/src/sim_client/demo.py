"""`./eval.sh --demo`: serves the embedded demo arm, evaluates it and stops the server again."""

import dataclasses
import subprocess
from pathlib import Path

from rich.console import Console

from sim_client import launch
from sim_client.config import PolicyArgs, RunArgs
from sim_client.envs.robosuite_tasks import find_task
from sim_client.errors import ConfigError
from sim_client.evaluate import SERVER_LOG, OnEpisode, RunSummary, claim_log_dir, evaluate

ARM = "demo"
NUM_TRIALS = 4
MAX_STEPS = 200  # of a task that allows more: a demo should end
READY_TIMEOUT_S = 300.0  # the first start compiles the model, on a slow machine in minutes


@dataclasses.dataclass(frozen=True)
class DemoPaths:
    """Where the demo finds its server and keeps its checkpoint."""

    serve_sh: Path
    checkpoints_root: Path

    @staticmethod
    def below(root: Path) -> "DemoPaths":
        """The paths in a checkout of the repository."""
        return DemoPaths(serve_sh=root / "serve.sh", checkpoints_root=root / "checkpoints")


def make_checkpoint(paths: DemoPaths, console: Console) -> None:
    """Write the demo's checkpoint unless it is there: random weights, the same on every machine.

    Raises:
        ConfigError: The command that writes it failed.
    """
    out = paths.checkpoints_root / ARM
    if out.exists():
        return
    command = [
        str(paths.serve_sh),
        "checkpoint",
        "init",
        "--config",
        "tiny",
        "--seed",
        "0",
        "--out",
        str(out),
    ]
    console.print(f"writing the demo's checkpoint to {out}", markup=False, soft_wrap=True)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise ConfigError(f"the demo's checkpoint could not be written: {done.stderr.strip()}")


def run_demo(
    args: RunArgs, paths: DemoPaths, console: Console, *, on_episode: OnEpisode
) -> RunSummary:
    """Serve the demo arm on a free port, run the evaluation, stop the server.

    Raises:
        ConfigError: The server did not start, or the request is impossible.
    """
    make_checkpoint(paths, console)
    log_dir = claim_log_dir(args, arm=ARM)
    port = launch.free_port()
    command = [
        str(paths.serve_sh), "--policy.arm", ARM,
        "--policy.checkpoints-root", str(paths.checkpoints_root),
        "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    console.print(
        f"starting the policy server (arm {ARM}, port {port})", markup=False, soft_wrap=True
    )
    asked = dataclasses.replace(
        _shortened(args), host="127.0.0.1", port=port, policy=PolicyArgs(arm=ARM)
    )
    with launch.running_server(
        command, port=port, log=log_dir / SERVER_LOG, ready_timeout_s=READY_TIMEOUT_S
    ):
        return evaluate(asked, on_episode=on_episode, log_dir=log_dir)


def _shortened(args: RunArgs) -> RunArgs:
    """Cut tasks of more than MAX_STEPS steps, which marks the results as deviating."""
    longest = max(find_task(task).max_steps for task in args.env_names)
    if args.max_steps is not None or longest <= MAX_STEPS:
        return args
    return dataclasses.replace(args, max_steps=MAX_STEPS, allow_deviation=True)
