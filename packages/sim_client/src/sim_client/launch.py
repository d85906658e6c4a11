"""Starts a policy server as a process of its own, waits for it and stops it."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sim_client.errors import ConfigError

STOP_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.2


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running_server(
    command: Sequence[str], *, port: int, log: Path, ready_timeout_s: float
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `command` until the block ends; the block starts when the server's port is open.

    Args:
        command: The server's command line; it must listen on 127.0.0.1:`port`.
        port: The port to wait for. A policy server opens it when it is ready to answer.
        log: Where the server's output goes.
        ready_timeout_s: How long the start may take, seconds.

    Raises:
        ConfigError: The server ended or did not open its port in time; its last line is quoted.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(list(command), stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait_until_ready(process, port, log, ready_timeout_s)
            yield process
        finally:
            _stop(process)


def _wait_until_ready(
    process: subprocess.Popen[bytes], port: int, log: Path, ready_timeout_s: float
) -> None:
    deadline = time.monotonic() + ready_timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise ConfigError(
                f"the policy server ended with code {process.returncode} before it was ready: "
                f"{_last_line(log)} (its output is in {log})"
            )
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=1.0),
        ):
            return
        time.sleep(POLL_INTERVAL_S)
    raise ConfigError(
        f"the policy server did not open port {port} within {ready_timeout_s:g} s "
        f"(its output is in {log})"
    )


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end, and end it if it does not."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
