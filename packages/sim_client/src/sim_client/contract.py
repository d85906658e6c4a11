"""Checks, before a simulator is built, that the server serves what this evaluation needs.

A mismatch is an error with a remedy: never a warning, never a silent slice, pad or default.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from sim_client.errors import ContractError
from sim_client.robots import Layout, layout_width

PROTOCOL_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Needs:
    """What an adapter and the command line need from a server.

    Attributes:
        robot: Name of the robot, e.g. "panda_omron".
        state_layout: (part, width) in the order in which the client fills the state.
        action_layout: (part, width) in the order in which the client reads an action.
        image_keys: Request keys of the cameras that the client sends.
        replan_steps: Actions played of each chunk.
        arm: The expected arm, None for any.
        allow_deviation: Accept replan_steps or a protocol other than the arm's.
        allow_nondeterministic: Accept a server that does not promise equal bits.
    """

    robot: str
    state_layout: Layout
    action_layout: Layout
    image_keys: Sequence[str]
    replan_steps: int
    arm: str | None = None
    allow_deviation: bool = False
    allow_nondeterministic: bool = False


@dataclasses.dataclass(frozen=True)
class Contract:
    """What holds between client and server for a whole run.

    Attributes:
        arm: Name of the arm that is served.
        noise_shape: (action_horizon, action_dim) of the noise in a request.
        action_width: Numbers in one action.
        deviations: What differs from the arm's protocol, empty if nothing does.
        reproducible: Whether equal requests give equal bits.
    """

    arm: str
    noise_shape: tuple[int, int]
    action_width: int
    deviations: tuple[str, ...]
    reproducible: bool


def check_contract(metadata: Mapping[str, Any], needs: Needs) -> Contract:
    """Compare the server's announcement with the client's needs.

    Raises:
        ContractError: Naming the first thing that does not match and the flag or file to change.
    """
    _check_protocol(metadata)
    arm = str(metadata["arm"])
    if needs.arm is not None and arm != needs.arm:
        raise ContractError(
            f"the server serves arm {arm!r}, --policy.arm expects {needs.arm!r}; "
            "start the server with that arm or change --policy.arm"
        )
    _check_robot(metadata["robot"], needs)
    horizon = int(metadata["action_horizon"])
    if not 1 <= needs.replan_steps <= horizon:
        raise ContractError(
            f"--args.replan-steps {needs.replan_steps} must lie between 1 and the server's action "
            f"horizon {horizon}"
        )
    deviations = _deviations(metadata, needs)
    reproducible = bool(metadata["determinism"]["deterministic"])
    if not reproducible and not needs.allow_nondeterministic:
        raise ContractError(
            f"the server is not deterministic ({metadata['determinism'].get('why')}); mend its "
            "XLA_FLAGS, or mark every result as not reproducible with --args.allow-nondeterministic"
        )
    return Contract(
        arm=arm,
        noise_shape=(horizon, int(metadata["action_dim"])),
        action_width=layout_width(needs.action_layout),
        deviations=deviations,
        reproducible=reproducible,
    )


REQUIRED_KEYS = (
    "protocol", "arm", "action_horizon", "action_dim", "replan_steps", "robot", "norm_stats",
    "checkpoint", "tokenizer", "transforms_sha256", "determinism", "versions", "device", "noise",
    "sample_steps", "compute_dtype", "weights", "server_revision", "protocol_deviation",
    "max_batch",
)  # fmt: skip


def _check_protocol(metadata: Mapping[str, Any]) -> None:
    protocol = metadata.get("protocol")
    if not isinstance(protocol, Mapping):
        raise ContractError(
            "the server announces no protocol (a stock openpi server?): it would ignore the noise, "
            "so no result could be reproduced; serve the checkpoint with ./serve.sh"
        )
    if protocol.get("version") != PROTOCOL_VERSION:
        raise ContractError(
            f"the server speaks protocol version {protocol.get('version')}, this client "
            f"{PROTOCOL_VERSION}; use server and client of the same revision"
        )
    missing = [key for key in REQUIRED_KEYS if key not in metadata]
    if missing:
        raise ContractError(
            f"the server's metadata lacks {', '.join(missing)}; "
            "use server and client of the same revision"
        )


def _check_robot(robot: Mapping[str, Any], needs: Needs) -> None:
    if robot["name"] != needs.robot:
        raise ContractError(
            f"the server's arm is for robot {robot['name']!r}, the simulator has {needs.robot!r}; "
            "choose another --policy.arm on the server or another --args.sim"
        )
    for what, announced, needed in (
        ("state", robot["state_layout"], needs.state_layout),
        ("action", robot["action_layout"], needs.action_layout),
    ):
        theirs = tuple((str(name), int(width)) for name, width in announced)
        if theirs != needed:
            raise ContractError(
                f"the server's {what} layout is {_show(theirs)}, the simulator's is "
                f"{_show(needed)}; names, widths and order must match, so serve an arm whose row "
                "has this robot"
            )
    unknown = sorted(set(needs.image_keys) - set(robot["image_keys"]))
    missing = sorted(set(robot["image_keys"]) - set(needs.image_keys))
    if unknown or missing:
        raise ContractError(
            f"the server takes the images {sorted(robot['image_keys'])}, the simulator sends "
            f"{sorted(needs.image_keys)}; choose an arm for these cameras"
        )


def _show(layout: Layout) -> str:
    return " ".join(f"{name}:{width}" for name, width in layout)


def _deviations(metadata: Mapping[str, Any], needs: Needs) -> tuple[str, ...]:
    """What the run does differently from the arm's row; refused unless it was asked for."""
    deviations = [str(d) for d in metadata["protocol_deviation"]]
    if needs.replan_steps != int(metadata["replan_steps"]):
        deviations.append(
            f"replan_steps {needs.replan_steps} instead of {metadata['replan_steps']}"
        )
    if deviations and not needs.allow_deviation:
        raise ContractError(
            f"this is not the arm's protocol: {'; '.join(deviations)}; go back to it, or mark "
            "every result as deviating with --args.allow-deviation"
        )
    return tuple(deviations)
