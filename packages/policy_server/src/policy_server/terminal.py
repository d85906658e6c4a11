"""What commands say to the user, and what they ask."""

import sys

from policy_server.errors import ConfigError


def say(line: str) -> None:
    """Write one line of a command's answer."""
    sys.stdout.write(line + "\n")


def require_terminal(what: str) -> None:
    """Refuse to go on where nobody can be asked.

    Args:
        what: What the user would vouch for, as a clause.

    Raises:
        ConfigError: The input is no terminal.
    """
    if not sys.stdin.isatty():
        raise ConfigError(
            f"this command asks on a terminal whether {what}, and there is none; add --yes if so."
        )


def ask(question: str) -> bool:
    """Ask a question that only "y" or "yes" says yes to."""
    sys.stdout.write(f"{question} [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
