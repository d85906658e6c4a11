"""The command policy-server: ./serve.sh --help."""

import logging
import os
import sys

from policy_server.config import (
    Check,
    CheckpointCommand,
    CheckpointExtractRaw,
    CheckpointInit,
    Serve,
    parse_command,
)
from policy_server.determinism import apply_determinism
from policy_server.errors import PolicyServerError
from policy_server.plan import check_out, make_plan
from policy_server.server import bind

EXIT_IMPOSSIBLE = 2  # the request itself was impossible
EXIT_INTERRUPTED = 130  # as a shell reports SIGINT


def main() -> None:
    """Run one command; a mistake of the user is one sentence, not a traceback."""
    command = parse_command(sys.argv[1:])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for chatty in ("absl", "jax", "orbax", "websockets"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        run(command)
    except PolicyServerError as error:
        sys.stderr.write(f"policy-server: {error}\n")
        sys.exit(EXIT_IMPOSSIBLE)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def run(command: Serve | Check | CheckpointCommand) -> None:
    """Set the flags, refuse what can be refused without JAX, then run the command.

    Raises:
        PolicyServerError: With a sentence for the user.
    """
    determinism = apply_determinism(os.environ)
    plan = make_plan(command.policy) if isinstance(command, Serve | Check) else None
    listener = bind(command.host, command.port) if isinstance(command, Serve) else None
    if isinstance(command, CheckpointInit | CheckpointExtractRaw):
        check_out(command)

    # These import JAX, which reads the flags above only once.
    from policy_server import checkpoint_commands, commands

    match command:
        case Serve() if plan is not None and listener is not None:
            commands.run_serve(command, plan, listener, determinism=determinism)
        case Check() if plan is not None:
            commands.run_check(plan)
        case _ if isinstance(command, CheckpointCommand):
            checkpoint_commands.run(command)


if __name__ == "__main__":
    main()
