"""Compares this machine's self-check with the one that a running server publishes."""

from collections.abc import Mapping
from typing import Any

import websockets.sync.client
from openpi_client import msgpack_numpy
from websockets.exceptions import InvalidStatus, WebSocketException

from policy_server.access import AUTHORIZATION_SCHEME
from policy_server.errors import ConfigError
from policy_server.terminal import say

# What two servers of different bits may differ in.
_CAUSES = (
    "arm", "action_horizon", "robot", "norm_stats", "checkpoint", "tokenizer", "transforms_sha256",
    "sample_steps", "compute_dtype", "versions", "device",
)  # fmt: skip


def fetch_metadata(address: str, api_key: str | None) -> Mapping[str, Any]:
    """Read a server's announcement.

    Args:
        address: HOST:PORT, or a whole address that begins with ws:// or wss://.
        api_key: Sent as openpi's client sends it; None sends none.

    Raises:
        ConfigError: Nobody answers there, the key is refused, or it is no server of this kind.
    """
    uri = address if address.startswith(("ws://", "wss://")) else f"ws://{address}"
    key = {} if api_key is None else {"Authorization": f"{AUTHORIZATION_SCHEME} {api_key}"}
    try:
        with websockets.sync.client.connect(
            uri, additional_headers=key, compression=None, max_size=None
        ) as connection:
            metadata = msgpack_numpy.unpackb(connection.recv())
    except InvalidStatus as error:
        status = error.response.status_code
        remedy = (
            "give its key with --api-key-file or $PI05_API_KEY" if status == 401 else "check it"
        )
        raise ConfigError(f"--against {address} answers with HTTP {status}; {remedy}.") from error
    except (OSError, ValueError, WebSocketException) as error:
        raise ConfigError(
            f"--against {address} is no policy server that answers ({error}); give its HOST:PORT."
        ) from error
    if not isinstance(metadata, dict) or published_sha256(metadata) is None:
        raise ConfigError(
            f"--against {address} publishes no self-check; it must be a policy-server of this kind."
        )
    return metadata


def published_sha256(metadata: Mapping[str, Any]) -> str | None:
    """The self-check that an announcement holds, None where it has none."""
    determinism = metadata.get("determinism")
    return determinism.get("selfcheck_sha256") if isinstance(determinism, dict) else None


def compare(own: Mapping[str, Any], theirs: Mapping[str, Any], address: str) -> bool:
    """Print both self-checks, and if they differ, in what the announcements do.

    Returns:
        Whether they are equal.
    """
    hashes = published_sha256(own), published_sha256(theirs)
    say(f"here {hashes[0]}")
    say(f"{address} {hashes[1]}")
    if hashes[0] == hashes[1]:
        say("equal: both give the same bits for the fixed requests")
        return True
    causes = [key for key in _CAUSES if own.get(key) != theirs.get(key)]
    say(f"different: they differ in {', '.join(causes) or 'nothing that is announced'}")
    return False
