"""How much of a GPU one server takes, so that simulators and a second server fit beside it."""

from collections.abc import MutableMapping

from policy_server.errors import ConfigError

# Read by XLA's client when it first touches the device (JAX docs, GPU memory allocation).
FRACTION_VARIABLE = "XLA_PYTHON_CLIENT_MEM_FRACTION"


def cap_gpu_memory(environ: MutableMapping[str, str], fraction: float | None) -> None:
    """Set what share of the card is preallocated; JAX's own default is 0.75.

    Args:
        environ: The process's environment, before JAX is imported.
        fraction: Share in (0, 1], None leaves the environment as it is.

    Raises:
        ConfigError: The share is not one.
    """
    if fraction is None:
        return
    if not 0.0 < fraction <= 1.0:
        raise ConfigError(
            f"--policy.gpu-memory-fraction {fraction} is no share of a card; give a number above 0 "
            "and at most 1."
        )
    environ[FRACTION_VARIABLE] = str(fraction)
