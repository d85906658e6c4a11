"""XLA flags under which equal requests give equal bits; set before JAX is imported.

The two defaults are the lab's. On a GPU both make XLA take the first kernel that fits instead of
timing several, so two processes cannot choose differently; on a CPU they are accepted and idle.
"""

import dataclasses
import hashlib
import shlex
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from policy_server.errors import ConfigError

DEFAULT_XLA_FLAGS: Mapping[str, str] = {
    "--xla_gpu_deterministic_ops": "true",
    "--xla_gpu_autotune_level": "0",
}
XLA_AUTOTUNE_LEVEL = "4"  # XLA's own default
SELFCHECK_DIFFERED = "equal requests of the self-check got different bits"
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
        autotune_sha256: Digest of the file of tuned kernels that --policy.autotune names.
    """

    xla_flags: str
    deterministic: bool
    why: str
    autotune_sha256: str | None = None


def tuned_flags(results: Path) -> Mapping[str, str]:
    """The flags that take every kernel from a file of `policy-server tune`, and refuse others.

    The two defaults would make XLA ignore that it may choose, so they are not among them.
    """
    return {
        "--xla_gpu_load_autotune_results_from": str(results),
        "--xla_gpu_require_complete_aot_autotune_results": "true",
        "--xla_gpu_exclude_nondeterministic_ops": "true",
    }


def tuning_flags(out: Path) -> Mapping[str, str]:
    """The flags that let XLA time its kernels and write its choice down; not deterministic."""
    return {"--xla_gpu_dump_autotune_results_to": str(out)}


def read_autotune(results: Path) -> str:
    """SHA-256 of a file of tuned kernels.

    Raises:
        ConfigError: It cannot be read.
    """
    try:
        return hashlib.sha256(results.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"--policy.autotune {results} cannot be read ({error.strerror}); write it on this kind "
            "of GPU with `policy-server tune --policy.arm ARM --out FILE`."
        ) from error


def apply_determinism(
    environ: MutableMapping[str, str],
    *,
    autotune: Path | None = None,
    tune_out: Path | None = None,
) -> Determinism:
    """Complete XLA_FLAGS and CUBLAS_WORKSPACE_CONFIG in `environ`, and judge the result.

    A flag that the user has set keeps the user's value; one that is missing gets the default. A
    setting that breaks determinism is not refused here: the report says so and clients decide.

    Args:
        environ: Changed in place.
        autotune: File of tuned kernels to use instead of the defaults.
        tune_out: File to write tuned kernels to; nothing is deterministic then.

    Raises:
        ConfigError: `autotune` cannot be read, JAX is imported already, so flags could not reach
            it any more, or XLA_FLAGS is neither a list of flags nor a readable file of them.
    """
    if "jax" in sys.modules:
        raise ConfigError(
            "JAX is imported already and XLA_FLAGS cannot change any more; "
            "apply_determinism() must come before the first import of jax."
        )
    recipe, autotune_sha256 = DEFAULT_XLA_FLAGS, None
    if autotune is not None:
        recipe, autotune_sha256 = tuned_flags(autotune.resolve()), read_autotune(autotune)
    elif tune_out is not None:
        recipe = tuning_flags(tune_out.resolve())
    flags = merge_xla_flags(environ.get("XLA_FLAGS", ""), recipe)
    environ["XLA_FLAGS"] = flags
    workspace = environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE_DEFAULT)
    broken = _broken_promises(parse_xla_flags(flags), workspace)
    kept = "pick kernels without timing them" if autotune is None else f"load them from {autotune}"
    return Determinism(
        xla_flags=flags,
        deterministic=not broken,
        why="; ".join(broken) or f"XLA_FLAGS {kept}",
        autotune_sha256=autotune_sha256,
    )


def merge_xla_flags(user_flags: str, recipe: Mapping[str, str] = DEFAULT_XLA_FLAGS) -> str:
    """Append the flags of a recipe that the user's do not set; the user's text stays as it is.

    Args:
        user_flags: The value of XLA_FLAGS: flags, or as XLA allows, the path of a file with flags.
        recipe: Flags and their values.

    Raises:
        ConfigError: The value is neither flags nor a readable file of flags.
    """
    text = user_flags.strip()
    if text and not text.startswith("-"):
        text = _read_flag_file(Path(text))
    given = parse_xla_flags(text)
    missing = [f"{name}={shlex.quote(v)}" for name, v in recipe.items() if name not in given]
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
    deterministic_ops = flags.get("--xla_gpu_deterministic_ops", "false")
    excluded = flags.get("--xla_gpu_exclude_nondeterministic_ops", "false")
    if not (_is_on(deterministic_ops) or _is_on(excluded)):
        broken.append(f"XLA_FLAGS has --xla_gpu_deterministic_ops={deterministic_ops}")
    autotune_level = flags.get("--xla_gpu_autotune_level", XLA_AUTOTUNE_LEVEL)
    if autotune_level != "0" and not flags.get("--xla_gpu_load_autotune_results_from"):
        broken.append(
            f"XLA_FLAGS has --xla_gpu_autotune_level={autotune_level} without "
            "--xla_gpu_load_autotune_results_from"
        )
    if cublas_workspace not in CUBLAS_WORKSPACES_REPRODUCIBLE:
        broken.append(f"CUBLAS_WORKSPACE_CONFIG is {cublas_workspace!r}")
    return broken


def _is_on(value: str) -> bool:
    return value.lower() in ("true", "1")
