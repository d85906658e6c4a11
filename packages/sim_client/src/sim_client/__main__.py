"""`./eval.sh`: evaluates a policy in a simulator."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import tyro
from rich.console import Console

from sim_client import demo, report
from sim_client.config import RunArgs, without_prefix
from sim_client.errors import SimClientError
from sim_client.evaluate import evaluate, resolve
from sim_client.launched import evaluate_launched


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0: every episode is scored; 1: some errored or the run was interrupted; 2: the request itself
    was impossible.
    """
    words = without_prefix(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["run"]:
        words = words[1:]
    try:
        return _run(words)
    except SimClientError as error:
        sys.stderr.write(f"eval.sh: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write(
            "eval.sh: interrupted; finished episodes are kept, continue with --args.resume\n"
        )
        return 1


def _run(words: Sequence[str]) -> int:
    default = RunArgs(num_trials=demo.NUM_TRIALS) if "--demo" in words else RunArgs()
    args = tyro.cli(RunArgs, args=list(words), prog="eval.sh", default=default)
    args = resolve(args)
    console = Console(soft_wrap=not sys.stdout.isatty())
    if args.start_episode_idx is not None:
        console.print("--args.start_episode_idx does nothing; use --args.env_seed_offset")
    total = args.num_trials * len(args.env_names)
    with report.episode_progress(total, console) as on_episode:
        if args.demo:
            paths = demo.DemoPaths.below(Path(os.environ["PI05_EVAL_ROOT"]))
            summary = demo.run_demo(args, paths, console, on_episode=on_episode)
        elif args.launch_server:
            summary = evaluate_launched(args, on_episode=on_episode)
        else:
            summary = evaluate(args, on_episode=on_episode)
    report.print_summary(summary, console)
    return summary.exit_code


if __name__ == "__main__":
    sys.exit(main())
