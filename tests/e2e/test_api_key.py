"""A server with an API key, as the scripts and openpi's client meet it."""

import numpy as np
import pytest
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from server_process import EVAL, demo_server, run_command

KEY = "a-key-for-this-test"


@pytest.fixture(scope="module")
def guarded(checkpoints, tmp_path_factory):
    """Port of a server with a key, and the file that holds the key."""
    folder = tmp_path_factory.mktemp("key")
    key_file = folder / "key"
    key_file.write_text(KEY + "\n")
    with demo_server(checkpoints, folder / "log", "--api-key-file", str(key_file)) as port:
        yield port, key_file


def test_an_evaluation_without_the_key_is_one_sentence(guarded):
    done = run_command(EVAL, "--args.port", str(guarded[0]), timeout_s=60.0)
    assert done.returncode == 2
    assert "--args.api-key-file or $PI05_API_KEY" in done.stderr
    assert KEY not in done.stderr


def test_an_evaluation_with_the_key_runs(guarded, tmp_path):
    port, key_file = guarded
    done = run_command(
        EVAL, "--args.port", str(port), "--args.api-key-file", str(key_file),
        "--args.num_trials", "1", "--args.max_steps", "5", "--args.allow-deviation",
        "--args.log_dir", str(tmp_path / "out"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    recorded = "".join(p.read_text() for p in (tmp_path / "out").rglob("*.json"))
    assert KEY not in recorded


def test_openpis_client_sends_its_api_key(guarded):
    client = WebsocketClientPolicy("127.0.0.1", guarded[0], api_key=KEY)
    assert client.get_server_metadata()["arm"] == "demo"
    assert np.prod(client.get_server_metadata()["noise"]["shape"]) == 50 * 32
    client._ws.close()
