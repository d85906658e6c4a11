"""The tiny real model through `serve` itself, asked by openpi's unchanged client."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from policy_serving import JOIN_TIMEOUT_S, get, stock_client
from served_arm import CHECKPOINT, RECORDED, write_arms, write_norm_stats
from served_process import Running, start

from policy_server.checkpoints import digest, restore
from policy_server.comparison import fetch_metadata

XLA_FLAGS = "--xla_cpu_enable_fast_math=false"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Running]:
    """The arm of the recorded requests, in float32."""
    table = write_arms(tmp_path_factory.mktemp("arm"), compute_dtype="float32")
    running = start(table, "--policy.require-noise", XLA_FLAGS=XLA_FLAGS)
    yield running
    running.stop()


@pytest.fixture
def client(server):
    with stock_client(server.port) as client:
        yield client


def recorded_request() -> dict[str, object]:
    with np.load(RECORDED) as recorded:
        observation = {
            key.removeprefix("obs/"): recorded[key]
            for key in recorded.files
            if key.startswith("obs/")
        }
        return {**observation, "prompt": str(recorded["obs/prompt"]), "noise": recorded["noise"]}


def test_a_recorded_request_gets_the_actions_that_openpi_gave(client):
    reply = client.infer({**recorded_request(), "query": {"ep_id": 7, "query_idx": 3}})
    with np.load(RECORDED) as recorded:
        expected = recorded["pad_before_stats32/quantile/actions_f32"]
    np.testing.assert_allclose(reply["actions"], expected, rtol=0, atol=1e-4, strict=True)
    assert reply["query"] == {"ep_id": 7, "query_idx": 3}
    assert reply["noise_source"] == "client"


def test_the_metadata_says_what_is_served_and_under_which_flags(client):
    metadata = client.get_server_metadata()
    assert metadata["checkpoint"]["digest"] == digest(restore(CHECKPOINT))
    assert (metadata["arm"], metadata["compute_dtype"]) == ("mine", "float32")
    assert metadata["device"]["platform"] == "cpu"
    assert metadata["determinism"]["deterministic"]
    assert metadata["determinism"]["xla_flags"] == (
        "--xla_cpu_enable_fast_math=false "
        "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
    )


def test_the_noise_decides_the_actions(client):
    request = recorded_request()
    first, again = (client.infer(request)["actions"] for _ in range(2))
    other = client.infer({**request, "noise": -np.asarray(request["noise"])})["actions"]
    assert first.tobytes() == again.tobytes()
    assert np.abs(first - other).max() > 1e-3


def change(key: str, value: object):
    return lambda request: {**request, key: value}


NAN_STATE = np.full(16, np.nan, np.float32)
BAD_REQUESTS = {
    "noise of the wrong shape": (change("noise", np.zeros((10, 32), np.float32)), "noise"),
    "noise of the wrong dtype": (change("noise", np.zeros((50, 32))), "noise"),
    "noise with NaN": (change("noise", np.full((50, 32), np.nan, np.float32)), "noise"),
    "no state": (lambda r: {k: r[k] for k in r if "state" not in k}, "observation/state"),
    "no image": (lambda r: {k: r[k] for k in r if "right" not in k}, "observation/right_image"),
    "unknown image": (change("observation/top", np.zeros((8, 8, 3), np.uint8)), "observation/top"),
    "image of the wrong shape": (
        change("observation/image", np.zeros((8, 8), np.uint8)),
        "observation/image",
    ),
    "image of the wrong dtype": (
        change("observation/image", np.zeros((8, 8, 3), np.int32)),
        "observation/image",
    ),
    "state with NaN": (change("observation/state", NAN_STATE), "observation/state"),
    "state of the wrong width": (change("observation/state", np.zeros(32)), "observation/state"),
    "no prompt": (lambda r: {k: r[k] for k in r if k != "prompt"}, "prompt"),
}


@pytest.mark.parametrize(("spoil", "named"), BAD_REQUESTS.values(), ids=BAD_REQUESTS.keys())
def test_a_bad_request_gets_one_sentence_and_the_connection_lives_on(client, spoil, named):
    request = recorded_request()
    before = client.infer(request)["actions"]
    with pytest.raises(RuntimeError) as caught:
        client.infer(spoil(request))
    after = client.infer(request)["actions"]
    (_, sentence) = str(caught.value).splitlines()  # the first line is the stock client's own
    assert named in sentence
    assert "internal error" not in sentence
    assert before.tobytes() == after.tobytes()


def test_health_checks_are_answered(server):
    assert get(server.port, "/healthz")[::2] == (200, "OK\n")


def test_a_request_without_noise_is_refused_where_the_flag_says_so(client):
    assert client.get_server_metadata()["noise"]["required"]
    with pytest.raises(RuntimeError, match=r"--policy\.require-noise"):
        client.infer({k: v for k, v in recorded_request().items() if k != "noise"})


def selfcheck(server: Running, table: Path) -> subprocess.CompletedProcess[str]:
    address = f"127.0.0.1:{server.port}"
    arm = ["--policy.arm", "mine", "--policy.arms-file", str(table)]
    return subprocess.run(
        [sys.executable, "-m", "policy_server", "selfcheck", "--against", address, *arm],
        env={**os.environ, "XLA_FLAGS": XLA_FLAGS},
        capture_output=True,
        text=True,
        timeout=4 * JOIN_TIMEOUT_S,
        check=False,
    )


def test_another_process_with_equal_inputs_finds_the_hash_that_this_server_publishes(server):
    published = fetch_metadata(f"127.0.0.1:{server.port}", None)["determinism"]["selfcheck_sha256"]
    done = selfcheck(server, server.table)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"here {published}",
        f"127.0.0.1:{server.port} {published}",
        "equal: both give the same bits for the fixed requests",
    ]


def test_a_process_with_other_norm_stats_finds_another_hash_and_the_cause(server, tmp_path):
    table = write_arms(tmp_path, compute_dtype="float32")
    write_norm_stats(tmp_path / "mine" / "norm_stats.json", scale=1.5)
    done = selfcheck(server, table)
    assert done.returncode == 3, done.stderr
    *_, cause = done.stdout.splitlines()
    assert cause == "different: they differ in norm_stats, transforms_sha256"


def test_one_line_says_what_is_served_and_one_where(server):
    arm, listening = server.log[:2]
    assert re.search(rf"arm mine: checkpoint {digest(restore(CHECKPOINT))}, .* on cpu$", arm)
    assert listening.endswith(f"ws://127.0.0.1:{server.port}")


def test_sigterm_ends_it_cleanly_although_a_client_is_connected(server):
    with stock_client(server.port) as client:
        client.infer(recorded_request())
        assert server.stop() == 0
    assert re.search(r"disconnected: 1 queries, median [\d.]+ ms$", server.log[-1])
