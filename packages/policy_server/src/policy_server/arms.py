"""The table of arms: an arm is a row of data, and no code knows an arm's name."""

import dataclasses
import difflib
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from policy_server.errors import ConfigError
from policy_server.norm_stats import NormMode, StatePadding
from policy_server.robots import RobotName


@dataclasses.dataclass(frozen=True)
class Arm:
    """One experimental arm: which policy is served, and how requests reach it.

    Attributes:
        name: The key of the row.
        checkpoint: Directory, absolute or under the checkpoints' root; "" if only the user knows.
        params: Which weights: raw, EMA, or whatever the directory holds. The first two need pins.
        model: "pi05" demands the full size; "any" takes the sizes that the checkpoint has.
        norm_mode: How state and actions are normalised.
        norm_stats: The stats file, relative to the file of the table.
        norm_stats_sha256: Pin of that file's bytes, "" for none.
        checkpoint_digest: Pin of the checkpoint, "" for none.
        refused_assets: Names (or digests) of stats that must never be served under this arm.
        action_horizon: H, the number of actions in a chunk.
        action_dim: Width of the model's actions and of the noise; the robot uses the first ones.
        max_token_len: L, the length the prompt is padded to.
        robot: Names the request keys, the state layout and the action layout.
        state_padding: Whether the state is padded to action_dim before it is normalised (RoboCasa's
            fork of openpi) or after it went into the prompt (upstream).
        discrete_state_input: Whether the prompt holds the state.
        replan_steps: Actions played of each chunk in this arm's evaluations.
        sample_steps: Euler steps of the flow.
        compute_dtype: dtype of the model; all weights are rounded to it.
        cameras: Image slots of the model.
        tokenizer: SentencePiece model, relative to the file of the table; "" looks it up.
        tokenizer_sha256: Pin of that file's bytes, "" for none.
    """

    name: str
    checkpoint: str
    params: Literal["raw", "ema", "any"]
    norm_mode: NormMode
    norm_stats: str
    action_horizon: int
    robot: RobotName
    state_padding: StatePadding
    model: Literal["pi05", "any"] = "pi05"
    discrete_state_input: bool = True
    action_dim: int = 32
    max_token_len: int = 200
    replan_steps: int = 5
    sample_steps: int = 10
    cameras: int = 3
    compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    norm_stats_sha256: str = ""
    checkpoint_digest: str = ""
    refused_assets: tuple[str, ...] = ()
    tokenizer: str = ""
    tokenizer_sha256: str = ""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be."""
        for key in ("action_horizon", "action_dim", "max_token_len", "sample_steps"):
            self._require(getattr(self, key) >= 1, key, "an integer of at least 1")
        horizon = self.action_horizon
        self._require(
            1 <= self.replan_steps <= horizon, "replan_steps", f"1 to action_horizon ({horizon})"
        )
        self._require(self.cameras == 3, "cameras", "3, the image slots of pi0.5")
        for key in ("norm_stats_sha256", "checkpoint_digest", "tokenizer_sha256"):
            pin = getattr(self, key)
            hexadecimal = len(pin) == 64 and set(pin) <= set("0123456789abcdef")
            self._require(not pin or hexadecimal, key, 'a SHA-256 (64 of 0-9a-f) or ""')

    def _require(self, holds: bool, key: str, expected: str) -> None:
        if not holds:
            raise ConfigError(f"{key} is {getattr(self, key)!r}, expected {expected}")


def load_arms(path: Path) -> dict[str, Arm]:
    """Read a table of arms.

    Raises:
        ConfigError: The file is missing or not TOML, or a row has an unknown or missing key or a
            value of the wrong type or range; it names file, arm, key and what is allowed.
    """
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the table of arms {path} cannot be read; give another one with --policy.arms-file."
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the table of arms {path} is not TOML: {error}.") from error
    rows = table.get("arms")
    if set(table) != {"arms"} or not isinstance(rows, dict) or not rows:
        raise ConfigError(
            f"the table of arms {path} holds {', '.join(table) or 'nothing'}; "
            "expected tables [arms.NAME] and nothing else."
        )
    return {name: _read_arm(name, row, path) for name, row in rows.items()}


def get_arm(name: str, arms: Mapping[str, Arm], source: Path) -> Arm:
    """Look an arm up by name in the table read from `source`.

    Raises:
        ConfigError: There is no such arm; it names the nearest one.
    """
    if name in arms:
        return arms[name]
    near = difflib.get_close_matches(name, arms, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ConfigError(f"--policy.arm {name!r} is not an arm{hint}; {source} has {', '.join(arms)}.")


def _read_arm(name: str, row: Any, path: Path) -> Arm:  # a value of TOML, of any type
    where = f"{path}, [arms.{name}]"
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is {row!r}, expected a table.")
    fields = {field.name: field for field in dataclasses.fields(Arm) if field.name != "name"}
    for key in row:
        if key not in fields:
            raise ConfigError(f"{where} has the unknown key {key!r}; known: {', '.join(fields)}.")
    for key, field in fields.items():
        if key not in row and field.default is dataclasses.MISSING:
            raise ConfigError(f"{where} lacks {key!r}, {_expected(field.type)}.")
    values = {}
    for key, value in row.items():
        value = tuple(value) if isinstance(value, list) else value
        if not _fits(value, fields[key].type):
            raise ConfigError(
                f"{where} has {key} = {value!r}, expected {_expected(fields[key].type)}."
            )
        values[key] = value
    try:
        return Arm(name=name, **values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}.") from error


def _fits(value: object, annotation: Any) -> bool:
    """Whether `value` is of a type that `Arm` uses; True is not an integer here."""
    if typing.get_origin(annotation) is Literal:
        return value in typing.get_args(annotation)
    if isinstance(annotation, types.GenericAlias):  # tuple[str, ...]
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    return type(value) is annotation


def _expected(annotation: Any) -> str:
    """The allowed values in words."""
    choices: Sequence[str] = typing.get_args(annotation)
    if typing.get_origin(annotation) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in choices)
    if isinstance(annotation, types.GenericAlias):
        return "a list of strings"
    return {str: "a string", int: "an integer", bool: "true or false"}[annotation]
