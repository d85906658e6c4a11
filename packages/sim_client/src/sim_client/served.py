"""The policy server of a run: connected to, compared with the simulator, described for results."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sim_client import contract, model_server, provenance
from sim_client.config import RunArgs
from sim_client.contract import Contract
from sim_client.envs.registry import Sim
from sim_client.episode import QueryPolicy
from sim_client.errors import ConfigError, ContractError
from sim_client.model_server import ModelInterface, ModelServerPolicy
from sim_client.remote_policy import RemotePolicy
from sim_client.robots import layout_width

API_KEY_VARIABLE = "PI05_API_KEY"  # also read by the server


@dataclasses.dataclass(frozen=True)
class Served:
    """A policy that is ready to be evaluated.

    Attributes:
        policy: Answers the queries.
        agreed: What holds between client and server for the whole run.
        runner: How results.json calls the protocol.
        server: What is known of the server, for the run's provenance.
        protocol: What joins the run's protocol in outcomes.json.
        not_reproducible: Why equal requests need not give equal bits, None where they do.
        before_episode: Makes the server forget the last episode; raises PolicyError.
    """

    policy: QueryPolicy
    agreed: Contract
    runner: str
    server: dict[str, Any]
    protocol: dict[str, Any]
    not_reproducible: str | None
    before_episode: Callable[[], None]


@contextlib.contextmanager
def connected(args: RunArgs, sim: Sim) -> Iterator[Served]:
    """Connect to the server that `args` names, and hang up when the block ends.

    Raises:
        ConfigError: There is no server, or it does not serve what the simulator needs.
    """
    if args.policy.protocol == "model-server":
        yield _model_server(args, sim)
        return
    policy = RemotePolicy(
        args.host,
        args.port,
        connect_timeout_s=args.connect_timeout_s,
        query_timeout_s=args.query_timeout_s,
        api_key=read_api_key(args.api_key_file),
    )
    try:
        yield _openpi(args, sim, policy)
    finally:
        policy.close()


def read_api_key(key_file: Path | None) -> str | None:
    """The key of the file, else of $PI05_API_KEY, else None.

    Raises:
        ConfigError: The file cannot be read.
    """
    if key_file is None:
        return os.environ.get(API_KEY_VARIABLE)
    try:
        return key_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--args.api-key-file {key_file} cannot be read ({error})") from error


def _openpi(args: RunArgs, sim: Sim, policy: RemotePolicy) -> Served:
    metadata = policy.connect()
    needs = contract.Needs(
        robot=sim.robot,
        state_layout=sim.state_layout,
        action_layout=sim.action_layout,
        image_keys=sim.image_keys,
        replan_steps=args.replan_steps,
        arm=args.policy.arm,
        allow_deviation=args.allow_deviation,
        allow_nondeterministic=args.allow_nondeterministic,
    )
    agreed = contract.check_contract(metadata, needs)
    why = str(metadata["determinism"].get("why"))
    return Served(
        policy=policy,
        agreed=agreed,
        runner="websocket",
        server={key: metadata[key] for key in provenance.SERVER_KEYS},
        protocol={},
        not_reproducible=None if agreed.reproducible else why,
        before_episode=lambda: None,  # this server keeps nothing from query to query
    )


def _model_server(args: RunArgs, sim: Sim) -> Served:
    interface = model_interface(args, sim)
    policy = ModelServerPolicy(
        args.host,
        args.port,
        interface,
        connect_timeout_s=args.connect_timeout_s,
        query_timeout_s=args.query_timeout_s,
    )
    name = policy.connect()
    if args.policy.arm not in (None, name):
        raise ContractError(
            f"the model-server serves policy {name!r}, --policy.arm expects {args.policy.arm!r}; "
            "start the server with that policy or change --policy.arm"
        )
    stated = dataclasses.asdict(interface)
    return Served(
        policy=policy,
        agreed=Contract(
            arm=name,
            noise_shape=(0, 0),  # none is sent
            action_width=interface.action_dim,
            deviations=(),
            reproducible=False,
        ),
        runner=model_server.RUNNER,
        server={"policy": name, "layouts": "not announced by the protocol, so not compared"},
        protocol={"policy_protocol": model_server.RUNNER, "action_seed": None, **stated},
        not_reproducible=model_server.NOT_REPRODUCIBLE,
        before_episode=policy.reset,
    )


def model_interface(args: RunArgs, sim: Sim) -> ModelInterface:
    """What goes to a model-server for this simulator, as the flags state it.

    Raises:
        ConfigError: The simulator has no such camera, or another state or action width.
    """
    names = dict(args.policy.named_images()) or {key: key for key in sim.image_keys}
    unknown = sorted(set(names) - set(sim.image_keys))
    if unknown:
        raise ConfigError(
            f"--policy.image-names names {', '.join(unknown)}, simulator {sim.name} has the images "
            f"{', '.join(sim.image_keys)}"
        )
    state_width, action_width = layout_width(sim.state_layout), layout_width(sim.action_layout)
    for flag, stated, width in (
        ("state-dim", args.policy.state_dim, state_width),
        ("action-dim", args.policy.action_dim, action_width),
    ):
        if stated not in (None, width):
            raise ConfigError(
                f"--policy.{flag} is {stated}, simulator {sim.name} has {width}; choose a model "
                "for this robot and leave the flag out, or another --args.sim"
            )
    return ModelInterface(
        image_names=names,
        state_dim=state_width,
        action_dim=action_width,
        replan_steps=args.replan_steps,
    )
