"""What a file of tuned kernels was tuned for, written beside it: FILE.json.

Kernels tuned for other shapes or on another card may be missing at a start, which XLA refuses with
its own words, or be slow ones; this says it in a sentence before the weights are compiled.
"""

import dataclasses
import importlib.metadata
import json
from pathlib import Path

from policy_server.errors import ConfigError
from policy_server.policy import LoadedPolicy


@dataclasses.dataclass(frozen=True)
class TunedFor:
    """What the choice of kernels belongs to.

    Attributes:
        checkpoint_digest: The weights' identity, and with it the model's sizes.
        device_kind: The card, in the vendor's words.
        jaxlib: Version of the compiler.
    """

    checkpoint_digest: str
    device_kind: str
    jaxlib: str

    @staticmethod
    def now(loaded: LoadedPolicy) -> "TunedFor":
        """What holds in this process."""
        jaxlib = importlib.metadata.version("jaxlib")
        return TunedFor(loaded.checkpoint_digest, loaded.device_kind, jaxlib)


def record_path(results: Path) -> Path:
    """Where the record of a file of tuned kernels lies."""
    return results.with_name(f"{results.name}.json")


def write_record(results: Path, tuned_for: TunedFor) -> None:
    """Write what `results` was tuned for."""
    record_path(results).write_text(json.dumps(dataclasses.asdict(tuned_for), indent=2) + "\n")


def check_record(results: Path, now: TunedFor) -> None:
    """Refuse kernels that were tuned for something else.

    Raises:
        ConfigError: The record is missing or damaged, or differs from `now`.
    """
    path = record_path(results)
    try:
        tuned_for = TunedFor(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"--policy.autotune {results}: its record {path} cannot be read ({error}); keep the "
            "two files of `policy-server tune` together, or tune again."
        ) from error
    for field in dataclasses.fields(TunedFor):
        tuned, current = getattr(tuned_for, field.name), getattr(now, field.name)
        if tuned != current:
            raise ConfigError(
                f"--policy.autotune {results} was tuned for {field.name} {tuned}, this server has "
                f"{current}; tune again with `policy-server tune --policy.arm ARM --out FILE`."
            )
