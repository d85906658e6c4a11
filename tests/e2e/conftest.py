from collections.abc import Iterator
from pathlib import Path

import pytest
import server_process


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of checkpoints that holds the demo's."""
    root = tmp_path_factory.mktemp("checkpoints")
    server_process.make_demo_checkpoint(root)
    return root


@pytest.fixture(scope="session")
def demo_port(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a real server of the demo arm."""
    log = tmp_path_factory.mktemp("server") / "server.log"
    with server_process.demo_server(checkpoints, log) as port:
        yield port
