"""Who may use a server: the API key, the addresses that need one, and TLS.

The key travels as openpi's client sends its `api_key`: `Authorization: Api-Key KEY`.
"""

import dataclasses
import hmac
import ipaddress
import logging
import re
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path

from policy_server.config import Serve
from policy_server.errors import ConfigError

logger = logging.getLogger(__name__)

API_KEY_VARIABLE = "PI05_API_KEY"
AUTHORIZATION_SCHEME = "Api-Key"
_HEADER_TEXT = re.compile(r"[!-~]+")  # what an HTTP header carries unchanged


@dataclasses.dataclass(frozen=True)
class Access:
    """What a client must bring.

    Attributes:
        api_key: The key; None lets everyone in.
        tls: Certificate and key of the server; None serves without encryption.
    """

    api_key: str | None = None
    tls: ssl.SSLContext | None = None


def make_access(command: Serve, listener: socket.socket, environ: Mapping[str, str]) -> Access:
    """Read the key and the certificate, and refuse to serve other machines without a key.

    Raises:
        ConfigError: A file cannot be used, or a key is missing.
    """
    api_key = read_api_key(command.api_key_file, environ)
    tls = load_tls(command.tls_cert, command.tls_key)
    risk = check_exposure(listener, api_key=api_key, insecure=command.insecure, tls=tls is not None)
    if risk:
        logger.warning("%s", risk)
    return Access(api_key, tls)


def read_api_key(key_file: Path | None, environ: Mapping[str, str]) -> str | None:
    """The key of the file, else of the environment, else None.

    Raises:
        ConfigError: The file cannot be read, or the key is empty or not of printable ASCII.
    """
    if key_file is None:
        source, text = f"${API_KEY_VARIABLE}", environ.get(API_KEY_VARIABLE)
        if text is None:
            return None
    else:
        source = f"--api-key-file {key_file}"
        try:
            text = key_file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source} cannot be read ({error}).") from error
    key = text.strip()
    if not _HEADER_TEXT.fullmatch(key):
        raise ConfigError(
            f"the API key of {source} is empty or holds blanks or other characters than ASCII; "
            "write one word into it."
        )
    return key


def check_exposure(
    listener: socket.socket, *, api_key: str | None, insecure: bool, tls: bool
) -> str | None:
    """Refuse to listen to other machines without a key.

    Args:
        listener: The bound socket.
        api_key: The key that clients must send, None for none.
        insecure: Whether the user takes the risk.
        tls: Whether the connections are encrypted.

    Returns:
        What the log should warn of, None where nothing.

    Raises:
        ConfigError: Other machines could use the server without a key.
    """
    address = listener.getsockname()[0]
    if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return None
    if api_key is None and not insecure:
        raise ConfigError(
            f"{address} can be reached from other machines, so it needs a key: give --api-key-file "
            f"or ${API_KEY_VARIABLE}, listen on 127.0.0.1 with --host, or allow everyone with "
            "--insecure."
        )
    if api_key is None:
        return f"everyone who reaches {address} can use this server (--insecure)"
    if not tls:
        return f"the API key crosses the network to {address} in the clear (no --tls-cert)"
    return None


def is_authorized(sent: str | None, api_key: str | None) -> bool:
    """Whether an Authorization header holds the key; the time taken does not tell how much of it.

    Args:
        sent: The header's value, None if there is none.
        api_key: The key, None if the server asks for none.
    """
    if api_key is None:
        return True
    scheme, _, key = (sent or "").partition(" ")
    same = hmac.compare_digest(key.strip().encode(errors="surrogateescape"), api_key.encode())
    return same and scheme.lower() == AUTHORIZATION_SCHEME.lower()


def load_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """The context of a server with this certificate chain and private key; None without both.

    Raises:
        ConfigError: Only one is given, or they cannot be read or do not belong together.
    """
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("--tls-cert and --tls-key are given together or not at all.")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(
            f"--tls-cert {cert} and --tls-key {key} are no certificate with its private key in PEM "
            f"({error})."
        ) from error
    return context


def _no_password() -> str:
    """OpenSSL would ask on the terminal, which a server does not have."""
    raise ValueError("the private key is encrypted")
