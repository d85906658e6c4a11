"""The command line: what each policy-server command can be told, as frozen dataclasses."""

import dataclasses
import os
from pathlib import Path
from typing import Annotated, Literal

import tyro

from policy_server.norm_stats import NormMode, StatePadding
from policy_server.robots import RobotName

REPOSITORY = Path(__file__).resolve().parents[4]  # packages/policy_server/src/policy_server
ARMS_FILE = REPOSITORY / "norm_stats" / "arms.toml"
CHECKPOINTS_ROOT_VARIABLE = "PI05_CHECKPOINTS"


def _default_checkpoints_root() -> Path:
    return Path(os.environ.get(CHECKPOINTS_ROOT_VARIABLE) or REPOSITORY / "checkpoints")


@dataclasses.dataclass(frozen=True)
class PolicyOptions:
    """Which policy is served, and from which files."""

    arm: str
    """Name of a row of the table of arms."""
    arms_file: Path = ARMS_FILE
    """The table of arms."""
    dir: Path | None = None
    """Checkpoint directory, instead of the one that the arm names."""
    checkpoints_root: Path = dataclasses.field(default_factory=_default_checkpoints_root)
    """Where the checkpoints that arms name are; $PI05_CHECKPOINTS sets the default."""
    tokenizer: Path | None = None
    """PaliGemma's SentencePiece model."""
    weights: Literal["f32", "bf16"] | None = None
    """How the rounded weights are stored: f32 on a CPU, bf16 on a GPU unless told; same actions."""
    require_noise: bool = False
    """Refuse requests without noise; their replies could not be reproduced."""
    allow_protocol_deviation: bool = False
    """Serve the arm otherwise than its row says, and mark every reply's metadata so."""
    norm_stats: Path | None = None
    """Other norm stats than the arm's; needs --policy.allow-protocol-deviation."""
    norm_mode: NormMode | None = None
    """Another normalisation than the arm's; needs --policy.allow-protocol-deviation."""
    action_horizon: int | None = None
    """Another horizon than the arm's; needs --policy.allow-protocol-deviation."""
    seed: int = 0
    """Seed of the noise that the server draws for requests that bring none."""
    gpu_memory_fraction: float | None = None
    """GPU only: share of the card's memory to take, so that others fit; JAX's default is 0.75."""
    autotune: Path | None = None
    """GPU only: file of tuned kernels, written by `policy-server tune`."""


@dataclasses.dataclass(frozen=True)
class Serve:
    """Serve one arm on a websocket; the port opens when the server is ready."""

    policy: PolicyOptions
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port to listen on; 0 takes a free one and logs it."""
    api_key_file: Path | None = None
    """File with the key that clients must send; $PI05_API_KEY is used without it."""
    tls_cert: Path | None = None
    """Certificate chain in PEM; the address is then wss://."""
    tls_key: Path | None = None
    """Private key of the certificate, in PEM."""
    insecure: bool = False
    """Serve other machines without a key."""


@dataclasses.dataclass(frozen=True)
class CompareSelfcheck:
    """Load an arm here and compare its self-check with the one that a server publishes.

    Ends with code 0 if they are equal and 3 if they are not.
    """

    policy: PolicyOptions
    against: str
    """HOST:PORT of the running server, or its address with ws:// or wss://."""
    api_key_file: Path | None = None
    """File with the server's key; $PI05_API_KEY is used without it."""


@dataclasses.dataclass(frozen=True)
class Tune:
    """Time the kernels of an arm's programs on this GPU, once, for --policy.autotune."""

    policy: PolicyOptions
    out: Path
    """File to write; it must not exist."""


@dataclasses.dataclass(frozen=True)
class Check:
    """Say whether `serve` would start, without loading weights or opening a port."""

    policy: PolicyOptions


@dataclasses.dataclass(frozen=True)
class CheckpointInit:
    """Write a checkpoint with random weights; the same seed gives the same digest."""

    config: Literal["tiny", "pi05"]
    """Size of the model."""
    out: Path
    """Directory to write; it must be empty or not exist."""
    seed: int
    """Seed of the weights."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """dtype on disk."""


@dataclasses.dataclass(frozen=True)
class CheckpointInspect:
    """Print leaves, which weights they are, which model, number of parameters and digest."""

    dir: tyro.conf.Positional[Path]
    """Checkpoint directory: the one that holds `params`."""


@dataclasses.dataclass(frozen=True)
class CheckpointExtractRaw:
    """Make the raw weights of a training step, which lie in its train_state, servable."""

    dir: tyro.conf.Positional[Path]
    """The training step's directory: the one that holds `params` and `train_state`."""
    out: Path
    """Directory to write; it must be empty or not exist."""


@dataclasses.dataclass(frozen=True)
class CheckpointPin:
    """Write a checkpoint's digest into an arm's row, once you vouch for its weights."""

    arm: str
    """Name of a row of the table of arms."""
    params: Literal["raw", "ema"]
    """Which weights the checkpoint holds."""
    dir: Path | None = None
    """Checkpoint directory, instead of the one that the arm names."""
    arms_file: Path = ARMS_FILE
    """The table of arms, changed in place."""
    checkpoints_root: Path = dataclasses.field(default_factory=_default_checkpoints_root)
    """Where the checkpoints that arms name are; $PI05_CHECKPOINTS sets the default."""
    yes: bool = False
    """Vouch without being asked, for scripts."""


CheckpointCommand = CheckpointInit | CheckpointInspect | CheckpointExtractRaw | CheckpointPin


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Write, look at or vouch for checkpoints."""

    action: tyro.conf.OmitSubcommandPrefixes[
        Annotated[CheckpointInit, tyro.conf.subcommand("init")]
        | Annotated[CheckpointInspect, tyro.conf.subcommand("inspect")]
        | Annotated[CheckpointExtractRaw, tyro.conf.subcommand("extract-raw")]
        | Annotated[CheckpointPin, tyro.conf.subcommand("pin")]
    ]


@dataclasses.dataclass(frozen=True)
class NormStatsImport:
    """Bring an arm's norm stats in: write them where its row says, and pin the row to them."""

    arm: str
    """Name of a row of the table of arms."""
    from_: Annotated[Path, tyro.conf.arg(name="from")]
    """openpi's norm_stats.json, a LeRobot dataset's directory or its meta/stats.json."""
    arms_file: Path = REPOSITORY / "norm_stats" / "arms.toml"
    """The table of arms, changed in place."""
    asset: str | None = None
    """Name of these stats where they come from; their folder's name, or the dataset's, without."""
    modality: Path | None = None
    """Names the parts of the dataset's vectors, instead of its own meta/modality.json."""
    allow_constant: tuple[str, ...] = ()
    """Numbers that stood still in the training, such as state.base_position.2."""
    replace: bool = False
    """Put these stats in the place of others that are there."""


@dataclasses.dataclass(frozen=True)
class NormStatsInspect:
    """Print the digest of norm stats, their widths, modes, constant numbers and padding."""

    file: tyro.conf.Positional[Path]
    """openpi's norm_stats.json."""


@dataclasses.dataclass(frozen=True)
class NormStatsCompute:
    """Compute the norm stats of a LeRobot dataset, z-score and quantiles, in the policy's order."""

    from_: Annotated[Path, tyro.conf.arg(name="from")]
    """The dataset's directory: the one that holds `meta` and `data`."""
    out: Path
    """File to write; it must not exist."""
    robot: RobotName
    """Whose states and actions these are."""
    state_padding: StatePadding = "before_normalization"
    """Whether the stats are padded to action_dim, as RoboCasa's fork of openpi needs them."""
    action_dim: int = 32
    """Width of the model's state and actions."""
    modality: Path | None = None
    """Names the parts of the dataset's vectors, instead of its own meta/modality.json."""


NormStatsCommand = NormStatsImport | NormStatsInspect | NormStatsCompute


@dataclasses.dataclass(frozen=True)
class NormStatsGroup:
    """Bring norm stats in, look at them or compute them."""

    action: tyro.conf.OmitSubcommandPrefixes[
        Annotated[NormStatsImport, tyro.conf.subcommand("import")]
        | Annotated[NormStatsInspect, tyro.conf.subcommand("inspect")]
        | Annotated[NormStatsCompute, tyro.conf.subcommand("compute")]
    ]


PolicyCommand = Serve | Check | CompareSelfcheck | Tune

Command = (
    Annotated[Serve, tyro.conf.subcommand("serve")]
    | Annotated[Check, tyro.conf.subcommand("check")]
    | Annotated[CompareSelfcheck, tyro.conf.subcommand("selfcheck")]
    | Annotated[Tune, tyro.conf.subcommand("tune")]
    | Annotated[Checkpoint, tyro.conf.subcommand("checkpoint")]
    | Annotated[NormStatsGroup, tyro.conf.subcommand("norm-stats")]
)


def parse_command(args: list[str]) -> PolicyCommand | CheckpointCommand | NormStatsCommand:
    """Read the command line; without a command it is `serve`.

    Raises:
        SystemExit: With code 2 for a flag that does not exist, 0 for --help.
    """
    if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
        args = ["serve", *args]
    command = tyro.cli(
        Command,  # pyright: ignore[reportArgumentType] # a union of annotated classes
        prog="policy-server",
        description="Serve pi0.5 checkpoints to simulators.",
        args=args,
        config=(
            tyro.conf.FlagCreatePairsOff,
            tyro.conf.OmitSubcommandPrefixes,
            tyro.conf.DisallowNone,
        ),
    )
    return command.action if isinstance(command, Checkpoint | NormStatsGroup) else command
