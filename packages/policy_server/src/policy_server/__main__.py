"""The command policy-server: ./serve.sh --help."""

import logging
import os
import sys

from policy_server import norm_stats_commands
from policy_server.access import make_access, read_api_key
from policy_server.comparison import fetch_metadata
from policy_server.config import (
    Check,
    CheckpointCommand,
    CheckpointExtractRaw,
    CheckpointInit,
    CompareSelfcheck,
    NormStatsCommand,
    PolicyCommand,
    Serve,
    Tune,
    parse_command,
)
from policy_server.determinism import apply_determinism
from policy_server.device_memory import cap_gpu_memory
from policy_server.errors import PolicyServerError
from policy_server.openpi_command import refuse_openpi_command
from policy_server.plan import check_out, make_plan
from policy_server.server import bind

EXIT_IMPOSSIBLE = 2  # the request itself was impossible
EXIT_DIFFERENT = 3  # a check failed
EXIT_INTERRUPTED = 130  # as a shell reports SIGINT


def main() -> None:
    """Run one command; a mistake of the user is one sentence, not a traceback."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for chatty in ("absl", "jax", "orbax", "websockets"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        refuse_openpi_command(sys.argv[1:])
        run(parse_command(sys.argv[1:]))
    except PolicyServerError as error:
        sys.stderr.write(f"policy-server: {error}\n")
        sys.exit(EXIT_IMPOSSIBLE)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def run(command: PolicyCommand | CheckpointCommand | NormStatsCommand) -> None:
    """Set the flags, refuse what can be refused without JAX, then run the command.

    Raises:
        PolicyServerError: With a sentence for the user.
    """
    if isinstance(command, NormStatsCommand):
        norm_stats_commands.run(command)
        return
    policy = command.policy if isinstance(command, PolicyCommand) else None
    determinism = apply_determinism(
        os.environ,
        autotune=policy.autotune if policy is not None else None,
        tune_out=command.out if isinstance(command, Tune) else None,
    )
    if policy is not None:
        cap_gpu_memory(os.environ, policy.gpu_memory_fraction)
    plan = None
    if policy is not None and not isinstance(command, Check):
        plan = make_plan(policy)
    listener = access = None
    if isinstance(command, Serve):
        listener = bind(command.host, command.port)
        access = make_access(command, listener, os.environ)
    if isinstance(command, CheckpointInit | CheckpointExtractRaw):
        check_out(command)

    # These import JAX, which reads the flags above only once.
    from policy_server import checkpoint_commands, commands

    if isinstance(command, CheckpointCommand):
        checkpoint_commands.run(command)
    elif isinstance(command, Check):
        _exit_if_different(commands.run_check(command.policy))
    elif plan is not None:
        match command:
            case Serve() if listener is not None and access is not None:
                commands.run_serve(command, plan, listener, determinism=determinism, access=access)
            case CompareSelfcheck():
                key = read_api_key(command.api_key_file, os.environ)
                published = fetch_metadata(command.against, key)
                _exit_if_different(
                    commands.run_compare(command, plan, published, determinism=determinism)
                )
            case Tune():
                commands.run_tune(command, plan)


def _exit_if_different(passed: bool) -> None:
    if not passed:
        sys.exit(EXIT_DIFFERENT)


if __name__ == "__main__":
    main()
