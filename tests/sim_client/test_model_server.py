import struct

import model_server_fake as fakes
import numpy as np
import pytest

from sim_client import launch
from sim_client.errors import ConfigError, PolicyError
from sim_client.model_server import ModelInterface, ModelServerPolicy
from sim_client.seeding import episode_noise

NOISE = episode_noise(42, 0, 0, (8, 4))
QUERY = {"ep_id": 0, "query_idx": 0}
IMAGE = np.arange(2 * 5 * 3, dtype=np.uint8).reshape(2, 5, 3)  # not square: rows and columns differ
REQUEST = {
    "observation/image": IMAGE,
    "observation/wrist_image": IMAGE[::-1],  # a view with negative strides
    "observation/state": np.array([0.5, -1.25], np.float32),
    "prompt": "Öffne die Tür.",
}
INTERFACE = ModelInterface(
    image_names={"observation/image": "front", "observation/wrist_image": "wrist"},
    state_dim=2,
    action_dim=2,
    replan_steps=5,
)


def policy(port, interface=INTERFACE, timeout_s=20.0, connect_timeout_s=5.0):
    return ModelServerPolicy(
        "127.0.0.1",
        port,
        interface,
        connect_timeout_s=connect_timeout_s,
        query_timeout_s=timeout_s,
    )


def ask(port, **changes):
    return policy(port, **changes).infer(REQUEST, noise=NOISE, query=QUERY)


def changed(**changes):
    return ModelInterface(
        **{
            "image_names": INTERFACE.image_names,
            "state_dim": 2,
            "action_dim": 2,
            "replan_steps": 5,
            **changes,
        }
    )


def test_the_server_gets_images_by_its_own_names_with_state_and_prompt():
    with fakes.model_server() as server:
        ask(server.port)
    (seen,) = server.requests
    assert seen.state == (0.5, -1.25)
    assert seen.prompt == "Öffne die Tür."
    assert [(i.name, i.width, i.height) for i in seen.images] == [("front", 5, 2), ("wrist", 5, 2)]
    assert seen.images[0].pixels == bytes(range(30))
    assert seen.images[1].pixels == bytes([*range(15, 30), *range(15)])


def test_a_camera_that_has_no_name_on_the_server_is_not_sent():
    with fakes.model_server() as server:
        ask(server.port, interface=changed(image_names={"observation/image": "front"}))
    assert [image.name for image in server.requests[0].images] == ["front"]


def test_the_chunk_is_cut_to_action_dim_and_says_so():
    rows = [[0.5 + step, -2.0, 0.25, 9.0] for step in range(6)]
    with fakes.model_server(fakes.FakeModelServer(rows=lambda _: rows)) as server:
        reply = ask(server.port)
    np.testing.assert_array_equal(reply.actions, np.array(rows)[:, :2])
    assert reply.warnings == (
        "the model-server's actions have 4 numbers each, the first 2 are kept",
    )
    assert reply.server_timing_ms == {"server_predict_ms": 2.5}


def test_a_chunk_of_the_robots_width_is_not_called_trimmed():
    with fakes.model_server() as server:
        reply = ask(server.port, interface=changed(action_dim=4))
    assert reply.actions.shape == (8, 4)
    assert reply.warnings == ()


def test_health_and_reset_reach_the_server():
    with fakes.model_server() as server:
        asked = policy(server.port)
        assert asked.health() == "ok policy=fake"
        assert asked.connect() == "fake"
        asked.reset()
    assert server.log == ["health", "health", "reset"]


@pytest.mark.parametrize(
    ("interface", "sentence"),
    [
        (changed(action_dim=5), r"4 numbers each, expected at least the 5 of --policy\.action-dim"),
        (changed(replan_steps=9), r"8 actions, expected at least the 9 of --args\.replan-steps"),
        (changed(state_dim=8), r"state has shape \(2,\), expected \(8,\)"),
        (changed(image_names={"observation/back": "b"}), "no image observation/back"),
    ],
)
def test_a_model_that_does_not_fit_the_robot_is_an_error(interface, sentence):
    with fakes.model_server() as server, pytest.raises(PolicyError, match=sentence):
        ask(server.port, interface=interface)


def test_the_servers_refusal_is_quoted():
    fake = fakes.FakeModelServer(refusal="missing image observation.images.image2")
    with (
        fakes.model_server(fake) as server,
        pytest.raises(PolicyError, match=r"refused predict with status 1: missing image .*image2"),
    ):
        ask(server.port)


GOOD = fakes.prediction([[1.0, 2.0]] * 8, {"server_predict_ms": 1.0})


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (lambda op, i: b"HTTP/1.1 400 Bad Request and some more", "is not a model-server's"),
        (lambda op, i: fakes.message(op, i, GOOD, version=2), "speaks version 2"),
        (lambda op, i: fakes.message(op, i + 1, GOOD), "of message 2"),
        (lambda op, i: fakes.message(2, i, GOOD), "the reply answers operation 2"),
        (lambda op, i: fakes.message(op, i, GOOD[:-1]), "carries 63 bytes"),
        (lambda op, i: fakes.message(op, i, GOOD + b"x"), "carries 65 bytes"),
        (lambda op, i: fakes.message(op, i, GOOD[:20]), "ends too early"),
        (lambda op, i: fakes.message(op, i, b""), "ends too early"),
        (lambda op, i: fakes.message(op, i, struct.pack("<IIII", 2, 3, 5, 0)), "5 numbers in all"),
        (lambda op, i: fakes.message(op, i, fakes.prediction([[np.nan]], {})), "not finite"),
        (lambda op, i: fakes.message(op, i, b"")[:20], "closed before the reply was whole"),
        (
            lambda op, i: struct.pack("<IHHHHIIQI", 0x414C5653, 3, 32, op, 0, i, 0, 2**40, 0),
            "announces a reply of 1099511627776 bytes",
        ),
    ],
)
def test_a_reply_that_is_not_the_answer_is_an_error(reply, sentence):
    with (
        fakes.model_server(fakes.FakeModelServer(raw=reply)) as server,
        pytest.raises(PolicyError, match=sentence),
    ):
        ask(server.port)


def test_a_server_that_hangs_is_an_error_that_names_the_flag():
    with (
        fakes.model_server(fakes.FakeModelServer(raw=lambda op, i: b"")) as server,
        pytest.raises(PolicyError, match=r"within 0\.2 s; raise --args\.query-timeout-s"),
    ):
        ask(server.port, timeout_s=0.2)


def test_a_server_that_is_gone_is_an_error():
    with pytest.raises(PolicyError, match=r"the connection to the model-server at .* broke"):
        ask(launch.free_port())


def test_a_missing_server_is_one_sentence_about_the_flags():
    with pytest.raises(ConfigError, match=r"no model-server answered at .*--args\.port"):
        policy(launch.free_port(), connect_timeout_s=0.0).connect()


@pytest.mark.parametrize("health", ["loading", "ok", "ok policy=../../etc"])
def test_a_server_that_is_not_healthy_is_refused(health):
    with (
        fakes.model_server(fakes.FakeModelServer(health=health)) as server,
        pytest.raises(ConfigError, match="expected 'ok policy=NAME'"),
    ):
        policy(server.port).connect()


def test_a_port_of_something_else_is_refused():
    fake = fakes.FakeModelServer(raw=lambda op, i: b"HTTP/1.1 400 Bad Request and some more")
    with (
        fakes.model_server(fake) as server,
        pytest.raises(ConfigError, match=r"is no healthy model-server: .*--policy\.protocol"),
    ):
        policy(server.port).connect()
