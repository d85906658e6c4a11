"""A policy server as a process of its own, started by its command."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from policy_serving import JOIN_TIMEOUT_S


@dataclasses.dataclass
class Running:
    """A server's process, its table of arms, its port and what it logged so far."""

    process: subprocess.Popen[str]
    table: Path
    port: int
    log: list[str]

    def stop(self) -> int:
        """Send SIGTERM, read the log to its end and give the exit code."""
        stderr = self.process.stderr
        assert stderr is not None
        if not stderr.closed:
            self.process.send_signal(signal.SIGTERM)
            with stderr:
                self.log += stderr.read().splitlines()
        return self.process.wait(JOIN_TIMEOUT_S)


def start(table: Path, *words: str, **environ: str) -> Running:
    """Serve the arm `mine` of a table on a free port; comes back when the server listens."""
    arm = ["--policy.arm", "mine", "--policy.arms-file", str(table)]
    process = subprocess.Popen(
        [sys.executable, "-m", "policy_server", *arm, "--port", "0", *words],
        env={**os.environ, **environ},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    log = []
    for line in process.stderr:  # ends with the process, should it not come to listen
        log.append(line.rstrip())
        found = re.search(r"listening on ws://127\.0\.0\.1:(\d+)$", line)
        if found:
            return Running(process, table, int(found[1]), log)
    raise AssertionError(f"the server ended with {process.wait()}: {log}")
