"""XLA flags under which equal requests give equal bits; set before JAX is imported.

The two defaults are the lab's. On a GPU both make XLA take the first kernel that fits instead of
timing several, so two processes cannot choose differently; on a CPU they are accepted and idle.
"""

import dataclasses
import shlex
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from policy_server.errors import ConfigError

DEFAULT_XLA_FLAGS: Mapping[str, str] = {
    "--xla_gpu_deterministic_ops": "true",
    "--xla_gpu_autotune_level": "0",
}
# cuBLAS gives the same bits again only with a workspace of its own (NVIDIA's cuBLAS guide).
CUBLAS_WORKSPACE_DEFAULT = ":4096:8"
CUBLAS_WORKSPACES_REPRODUCIBLE = (":4096:8", ":16:8")


@dataclasses.dataclass(frozen=True)
class Determinism:
    """What holds in this process.

    Attributes:
        xla_flags: The flags XLA reads, the user's first.
        deterministic: Whether they promise equal bits for equal requests.
        why: What the promise rests on, or every setting that breaks it.
    """

    xla_flags: str
    deterministic: bool
    why: str


def apply_determinism(environ: MutableMapping[str, str]) -> Determinism:
    """Complete XLA_FLAGS and CUBLAS_WORKSPACE_CONFIG in `environ`, and judge the result.

    A flag that the user has set keeps the user's value; one that is missing gets the default. A
    setting that breaks determinism is not refused here: the report says so and clients decide.

    Raises:
        ConfigError: JAX is imported already, so flags could not reach it any more, or XLA_FLAGS is
            neither a list of flags nor a readable file of them.
    """
    if "jax" in sys.modules:
        raise ConfigError(
            "JAX is imported already and XLA_FLAGS cannot change any more; "
            "apply_determinism() must come before the first import of jax."
        )
    flags = merge_xla_flags(environ.get("XLA_FLAGS", ""))
    environ["XLA_FLAGS"] = flags
    workspace = environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE_DEFAULT)
    broken = _broken_promises(parse_xla_flags(flags), workspace)
    why = "; ".join(broken) or "XLA_FLAGS pick kernels without timing them"
    return Determinism(xla_flags=flags, deterministic=not broken, why=why)


def merge_xla_flags(user_flags: str) -> str:
    """Append the defaults that the user's flags do not set; the user's text stays as it is.

    Args:
        user_flags: The value of XLA_FLAGS: flags, or as XLA allows, the path of a file with flags.

    Raises:
        ConfigError: The value is neither flags nor a readable file of flags.
    """
    text = user_flags.strip()
    if text and not text.startswith("-"):
        text = _read_flag_file(Path(text))
    given = parse_xla_flags(text)
    missing = [f"{name}={value}" for name, value in DEFAULT_XLA_FLAGS.items() if name not in given]
    return " ".join([*([text] if text else []), *missing])


def parse_xla_flags(text: str) -> dict[str, str]:
    """The value of each flag in `text`; the last one counts, a flag without a value means true.

    Raises:
        ConfigError: A quotation mark is not closed.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"XLA_FLAGS {text!r} cannot be split into flags: {error}.") from error
    pairs = (word.partition("=") for word in words)
    return {name: value if equals else "true" for name, equals, value in pairs}


def _read_flag_file(path: Path) -> str:
    """XLA skips a file that it cannot read without a word; a typo should not go unseen."""
    try:
        return " ".join(path.read_text().split())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"XLA_FLAGS is {str(path)!r}, which is neither a list of --flags nor a readable file."
        ) from error


def _broken_promises(flags: Mapping[str, str], cublas_workspace: str) -> Sequence[str]:
    """Name every setting under which two runs may differ in bits."""
    broken = []
    deterministic_ops = flags["--xla_gpu_deterministic_ops"]
    if deterministic_ops.lower() not in ("true", "1"):
        broken.append(f"XLA_FLAGS has --xla_gpu_deterministic_ops={deterministic_ops}")
    autotune_level = flags["--xla_gpu_autotune_level"]
    if autotune_level != "0" and not flags.get("--xla_gpu_load_autotune_results_from"):
        broken.append(
            f"XLA_FLAGS has --xla_gpu_autotune_level={autotune_level} without "
            "--xla_gpu_load_autotune_results_from"
        )
    if cublas_workspace not in CUBLAS_WORKSPACES_REPRODUCIBLE:
        broken.append(f"CUBLAS_WORKSPACE_CONFIG is {cublas_workspace!r}")
    return broken
