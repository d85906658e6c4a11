"""The real server, the real openpi client and our own, on a real websocket."""

import urllib.request

import numpy as np
import pytest
import server_process
from openpi_client.websocket_client_policy import WebsocketClientPolicy

from sim_client.contract import Needs, check_contract
from sim_client.envs.registry import SIMS
from sim_client.errors import PolicyError
from sim_client.remote_policy import RemotePolicy
from sim_client.seeding import episode_noise

SHAPE = (50, 32)


def request(seed: int) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    cameras = ("observation/image", "observation/wrist_image", "observation/right_image")
    images = {key: rng.integers(0, 256, (224, 224, 3), dtype=np.uint8) for key in cameras}
    state = rng.standard_normal(16).astype(np.float32)
    return {**images, "observation/state": state, "prompt": "Lift the red cube."}


def connect(port: int) -> RemotePolicy:
    policy = RemotePolicy("127.0.0.1", port, connect_timeout_s=10.0, query_timeout_s=60.0)
    policy.connect()
    return policy


def ask(policy: RemotePolicy, seed: int) -> np.ndarray:
    noise = episode_noise(42, seed, 0, SHAPE)
    return policy.infer(request(seed), noise=noise, query={"ep_id": seed, "query_idx": 0}).actions


def test_the_server_announces_what_the_simulator_needs(demo_port):
    policy = RemotePolicy("127.0.0.1", demo_port, connect_timeout_s=10.0, query_timeout_s=60.0)
    sim = SIMS["robosuite"]
    needs = Needs(
        sim.robot, sim.state_layout, sim.action_layout, sim.image_keys, replan_steps=5, arm="demo"
    )
    agreed = check_contract(policy.connect(), needs)
    policy.close()
    assert agreed.noise_shape == SHAPE
    assert agreed.action_width == 12
    assert agreed.reproducible


def test_an_unchanged_openpi_client_gets_float64_actions_of_the_robots_width(demo_port):
    client = WebsocketClientPolicy("127.0.0.1", demo_port)
    reply = client.infer(request(0))
    client._ws.close()
    assert reply["actions"].shape == (50, 12)
    assert reply["actions"].dtype == np.float64
    assert reply["noise_source"] == "server"
    assert client.get_server_metadata()["arm"] == "demo"


def test_an_unchanged_openpi_client_may_send_the_noise_too(demo_port):
    noise = episode_noise(42, 3, 0, SHAPE)
    client = WebsocketClientPolicy("127.0.0.1", demo_port)
    reply = client.infer({**request(3), "noise": noise})
    client._ws.close()
    ours = connect(demo_port)
    np.testing.assert_array_equal(reply["actions"], ask(ours, 3))
    ours.close()


def test_neighbours_order_and_repeats_change_no_bit(demo_port):
    first, second = connect(demo_port), connect(demo_port)
    alone = [ask(first, seed) for seed in (0, 1, 2)]
    mixed = [ask(policy, seed) for policy, seed in ((second, 2), (first, 1), (second, 0))]
    first.close()
    second.close()
    for ours, theirs in zip(alone, reversed(mixed), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_another_start_of_the_server_changes_no_bit(demo_port, checkpoints, tmp_path):
    policy = connect(demo_port)
    before = [ask(policy, seed) for seed in (0, 1)]
    policy.close()
    with server_process.demo_server(checkpoints, tmp_path / "log") as other_port:
        policy = connect(other_port)
        again = [ask(policy, seed) for seed in (1, 0)]
        policy.close()
    np.testing.assert_array_equal(before[0], again[1])
    np.testing.assert_array_equal(before[1], again[0])


def test_the_noise_decides_the_actions(demo_port):
    policy = connect(demo_port)
    query = {"ep_id": 0, "query_idx": 0}
    replies = [
        policy.infer(request(0), noise=episode_noise(seed, 0, 0, SHAPE), query=query).actions
        for seed in (1, 2)
    ]
    policy.close()
    assert np.abs(replies[0] - replies[1]).max() > 1e-3


BAD_STATE = {"observation/state": np.full(16, np.nan, np.float32)}
BAD_IMAGES = {"observation/image": np.zeros((224, 224), np.uint8)}


@pytest.mark.parametrize(
    ("change", "noise_shape", "sentence"),
    [
        ({}, (10, 32), r"noise.*\(10, 32\).*\(50, 32\)"),
        (BAD_STATE, SHAPE, "observation/state"),
        ({"observation/state": np.zeros(32, np.float32)}, SHAPE, "observation/state.*16"),
        (BAD_IMAGES, SHAPE, "observation/image"),
        ({"prompt": None}, SHAPE, "prompt"),
    ],
)
def test_a_bad_request_is_one_sentence_and_the_connection_lives_on(
    demo_port, change, noise_shape, sentence
):
    policy = connect(demo_port)
    good = ask(policy, 5)
    query = {"ep_id": 0, "query_idx": 0}
    with pytest.raises(PolicyError, match=sentence) as caught:
        policy.infer(
            {**request(5), **change}, noise=episode_noise(0, 0, 0, noise_shape), query=query
        )
    np.testing.assert_array_equal(ask(policy, 5), good)
    policy.close()
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_healthz_answers(demo_port):
    with urllib.request.urlopen(f"http://127.0.0.1:{demo_port}/healthz") as answer:
        assert (answer.status, answer.read()) == (200, b"OK\n")
