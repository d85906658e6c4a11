"""openpi's own command line, answered with the arm to use.

A training config's name decides nothing here: some configs of this family carry a horizon of 10,
and a checkpoint served by the wrong name would silently run with that.
"""

import re
from collections.abc import Sequence

from policy_server.arms import load_arms
from policy_server.config import ARMS_FILE
from policy_server.errors import ConfigError

# (what a config's name matches, the arms of its checkpoints); the first match counts.
CONFIG_ARMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"pi05_libero.*", ("pi05_libero",)),
    (r"pi05_(full_)?droid.*", ("pi05_droid",)),
    (r"pi05_aloha.*", ("pi05_aloha",)),
    (r"pi05_.*qnorm.*", ("vace", "mimicgen", "pose6daug")),
    (r"pi05_.*(ctc502|robocasa|human300).*", ("base", "vace", "mimicgen", "pose6daug")),
)
ENVIRONMENT_ARMS = {"LIBERO": "pi05_libero", "DROID": "pi05_droid", "ALOHA": "pi05_aloha"}
_SUBCOMMANDS = ("policy:checkpoint", "policy:default")


def refuse_openpi_command(args: Sequence[str]) -> None:
    """Refuse the command line of openpi's scripts/serve_policy.py, naming the arm to use.

    Source:
        openpi scripts/serve_policy.py, class Args (15a9616): the flags that are looked for.

    Raises:
        ConfigError: It is such a command line.
    """
    config, environment = _value(args, "--policy.config"), _value(args, "--env")
    subcommand = next((word for word in args if word in _SUBCOMMANDS), None)
    if config is not None:
        asked, arms = f"--policy.config {config}", _arms_of(config)
    elif environment is not None:
        asked, arms = f"--env {environment}", _arms_of_environment(environment)
    elif subcommand is not None:
        asked, arms = subcommand, ()
    else:
        return
    directory = _value(args, "--policy.dir")
    flags = f"--policy.arm {arms[0] if arms else 'ARM'}"
    if directory:
        flags += f" --policy.dir {directory}"
    if len(arms) == 1:
        choice = ""
    elif arms:
        choice = f", or another arm whose checkpoint it is ({', '.join(arms[1:])})"
    else:
        choice = f", with one of the arms {', '.join(load_arms(ARMS_FILE))}"
    raise ConfigError(
        f"{asked} is openpi's command line, and here an arm, not a config, says what is served: "
        f"use {flags}{choice}."
    )


def _arms_of(config: str) -> tuple[str, ...]:
    for pattern, arms in CONFIG_ARMS:
        if re.fullmatch(pattern, config):
            return arms
    return ()


def _arms_of_environment(environment: str) -> tuple[str, ...]:
    arm = ENVIRONMENT_ARMS.get(environment.upper())
    return () if arm is None else (arm,)


def _value(args: Sequence[str], flag: str) -> str | None:
    """What follows a flag, as one word or two."""
    for index, word in enumerate(args):
        if word == flag:
            return args[index + 1] if index + 1 < len(args) else ""
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None
