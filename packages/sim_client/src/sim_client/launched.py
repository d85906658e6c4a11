"""An evaluation that starts the policy server it needs, with --args.launch-server."""

import contextlib
import shlex
import shutil
import socket

from sim_client import launch
from sim_client.config import RunArgs
from sim_client.errors import ConfigError
from sim_client.evaluate import SERVER_LOG, OnEpisode, RunSummary, claim_log_dir, evaluate, resolve

READY_TIMEOUT_S = 900.0  # a large checkpoint is read and compiled before the port opens
LOOPBACK = ("127.0.0.1", "localhost")


def evaluate_launched(args: RunArgs, *, on_episode: OnEpisode) -> RunSummary:
    """Run --args.server-command, evaluate its policy, stop it again.

    Raises:
        ConfigError: The command cannot be run, its port is taken or stays closed, or the request
            is impossible.
    """
    args = resolve(args)
    command = server_command(args)
    log_dir = claim_log_dir(args, arm=args.policy.arm or args.policy.protocol)
    with launch.running_server(
        command, port=args.port, log=log_dir / SERVER_LOG, ready_timeout_s=READY_TIMEOUT_S
    ):
        return evaluate(args, on_episode=on_episode, log_dir=log_dir)


def server_command(args: RunArgs) -> list[str]:
    """The words of --args.server-command, once it is known that they can be run.

    Raises:
        ConfigError: They are no command, or the server would not be the one that is asked.
    """
    try:
        words = shlex.split(args.server_command or "")
    except ValueError as error:
        raise ConfigError(f"--args.server-command cannot be split into words: {error}") from error
    if not words or shutil.which(words[0]) is None:
        raise ConfigError(
            f"--args.server-command {args.server_command!r} does not start with a program that "
            "can be run; give the whole command line of the server"
        )
    if args.host not in LOOPBACK:
        raise ConfigError(
            f"--args.host is {args.host}, but a launched server is asked on 127.0.0.1; leave "
            "--args.host or --args.launch-server out"
        )
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", args.port), timeout=1.0),
    ):
        raise ConfigError(
            f"something already listens on port {args.port}, so the launched server could not; "
            "choose another --args.port, in --args.server-command too"
        )
    return words
