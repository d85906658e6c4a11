"""The command line of an evaluation."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from sim_client.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class PolicyArgs:
    """What is expected of the server."""

    arm: str | None = None
    """Refuse a server that serves another arm; by default any arm is evaluated."""
    protocol: Literal["openpi", "model-server"] = "openpi"
    """openpi: a websocket, as ./serve.sh speaks it; model-server: robot.cpp's, which takes no
    noise, so that no result can be reproduced."""
    image_names: tuple[str, ...] = ()
    """KEY=NAME: how the model-server calls the image KEY of the simulator. Only named images are
    sent; by default all are, under their own keys."""
    state_dim: int | None = None
    """Numbers in the model-server's state; refused unless it is the simulator's own number."""
    action_dim: int | None = None
    """Numbers kept of each action of the model-server; refused unless it is the simulator's own
    number."""

    def check(self) -> None:
        """Refuse what no server can be asked for, with ConfigError."""
        own = PolicyArgs(arm=self.arm, protocol=self.protocol)
        if self.protocol != "model-server" and self != own:
            raise ConfigError(
                "--policy.image-names, --policy.state-dim and --policy.action-dim belong to "
                "--policy.protocol model-server; an openpi server announces these itself"
            )
        names = self.named_images()
        for what, words in (("key", [key for key, _ in names]), ("name", [n for _, n in names])):
            if not all(words) or len(set(words)) != len(words):
                raise ConfigError(
                    f"--policy.image-names {' '.join(self.image_names)} gives a {what} twice or "
                    "not at all, expected KEY=NAME for each image"
                )

    def named_images(self) -> list[tuple[str, str]]:
        """The (KEY, NAME) pairs of --policy.image-names."""
        parts = [word.partition("=") for word in self.image_names]
        return [(key, name) for key, _, name in parts]


@dataclasses.dataclass(frozen=True)
class RunArgs:
    """One evaluation. Every flag also exists with the lab's prefix, e.g. --args.num_trials."""

    policy: PolicyArgs = dataclasses.field(default_factory=PolicyArgs)
    demo: bool = False
    """Serve the embedded demo arm and evaluate it; needs no other input and no running server."""
    host: str = "127.0.0.1"
    """Host of the policy server; wss://HOST for one with TLS."""
    port: int = 8000
    """Port of the policy server."""
    launch_server: bool = False
    """Start the policy server with --args.server-command and stop it after the last episode."""
    server_command: str | None = None
    """Command line of the server to launch; it must listen on 127.0.0.1 and --args.port."""
    sim: Literal["robosuite", "libero", "robocasa"] = "robosuite"
    """Simulator."""
    split: str = "target"
    """Scenes and objects of robocasa: target or pretrain; the other simulators have no splits."""
    env_names: tuple[str, ...] = ("Lift",)
    """Tasks to evaluate, one after the other; a suite's name stands for all its tasks."""
    num_trials: int = 200
    """Episodes per task."""
    env_seed_offset: int = 0
    """First episode id; episode ids are env_seed_offset .. env_seed_offset + num_trials - 1."""
    action_seed: int = 42
    """Base of the seeds of the policy's noise."""
    replan_steps: int = 5
    """Actions played of each chunk before the policy is asked again."""
    mp4_roundtrip: bool | None = None
    """Pass camera frames through the training's video codec before the resize; by default as the
    simulator's training data was made: on for robocasa, off elsewhere."""
    log_dir: Path | None = None
    """Folder of the run; by default eval/results/<sim>-<arm>-<time>."""
    resume: bool = False
    """Continue the run in --args.log-dir: finished episodes are kept, errored ones run again."""
    max_steps: int | None = None
    """Steps after which an episode ends as a timeout; by default the task's own number. Another
    number is another protocol: it needs --args.allow-deviation."""
    video: bool = True
    """Write a video of every episode."""
    trace: Literal["digests", "full"] = "digests"
    """full: traces hold the physics state of every step, not only its digest."""
    allow_deviation: bool = False
    """Evaluate with another protocol than the arm's and mark every result as deviating."""
    allow_nondeterministic: bool = False
    """Evaluate a server that does not promise equal bits and mark every result."""
    api_key_file: Path | None = None
    """File with the server's API key; $PI05_API_KEY is used without it."""
    connect_timeout_s: float = 60.0
    """How long to wait for the server, seconds."""
    query_timeout_s: float = 900.0
    """How long one answer may take, seconds."""
    start_episode_idx: Annotated[int | None, tyro.conf.arg(name="start_episode_idx")] = None
    """Does nothing; use --args.env_seed_offset."""

    def check(self) -> None:
        """Refuse numbers that no evaluation can have, with ConfigError."""
        for name, value, least in (
            ("num-trials", self.num_trials, 1),
            ("env-seed-offset", self.env_seed_offset, 0),
            ("replan-steps", self.replan_steps, 1),
            ("max-steps", self.max_steps if self.max_steps is not None else 1, 1),
        ):
            if value < least:
                raise ConfigError(f"--args.{name} is {value}, expected at least {least}")
        if self.max_steps is not None and not self.allow_deviation:
            raise ConfigError(
                "--args.max-steps is not the benchmark's protocol; add --args.allow-deviation to "
                "mark every result as deviating, or leave it out"
            )
        self.policy.check()
        if self.launch_server != (self.server_command is not None):
            raise ConfigError(
                "--args.launch-server and --args.server-command need each other; give both or none"
            )
        if self.demo and (self.launch_server or self.policy.protocol != "openpi"):
            raise ConfigError(
                "--demo starts a server of its own; leave --args.launch-server and "
                "--policy.protocol out, or --demo"
            )
        if self.resume and self.log_dir is None:
            raise ConfigError(
                "--args.resume needs --args.log-dir, the folder of the run to continue"
            )


def without_prefix(argv: Sequence[str]) -> list[str]:
    """Drop the lab's `args.` prefix from flags: --args.host and --host are the same flag."""
    return [re.sub(r"^--args\.", "--", word) for word in argv]
