import client_fakes as fakes
import numpy as np
import pytest

from sim_client import launch
from sim_client.errors import ConfigError, ContractError, PolicyError
from sim_client.remote_policy import RemotePolicy
from sim_client.seeding import episode_noise

NOISE = episode_noise(42, 0, 0, (8, 4))
QUERY = {"ep_id": 0, "query_idx": 0}


def ask(port, noise=NOISE, timeout_s=20.0):
    policy = RemotePolicy("127.0.0.1", port, connect_timeout_s=5.0, query_timeout_s=timeout_s)
    try:
        policy.connect()
        return policy.infer({"prompt": "x"}, noise=noise, query=QUERY)
    finally:
        policy.close()


def test_a_reply_carries_the_actions_of_the_noise_that_was_sent():
    with fakes.policy_server() as port:
        reply = ask(port)
    np.testing.assert_array_equal(reply.actions, NOISE[:, :2].astype(np.float64))
    assert reply.server_timing_ms == {"infer_ms": 1.5}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"query": {"ep_id": 0, "query_idx": 1}}, "the reply answers {'ep_id': 0, 'query_idx': 1}"),
        ({"noise_sha256": "0" * 64}, "did not use the noise"),
        ({"actions": np.zeros((7, 2))}, r"shape \(7, 2\), expected \(8, width\)"),
        ({"actions": [1, 2]}, "shape list"),
        ({"actions": np.full((8, 2), np.nan)}, "not finite"),
    ],
)
def test_a_reply_that_is_not_the_answer_is_an_error(change, sentence):
    with (
        fakes.policy_server(lambda request: {**fakes.answer(request), **change}) as port,
        pytest.raises(PolicyError, match=sentence),
    ):
        ask(port)


def test_a_text_frame_is_the_servers_error():
    with (
        fakes.policy_server(lambda _: "noise has shape (2,), expected (8, 4)") as port,
        pytest.raises(PolicyError, match=r"refused the request: noise has shape \(2,\)"),
    ):
        ask(port)


def test_a_server_that_hangs_up_is_an_error_and_the_next_query_connects_again():
    answers = iter([None, "ok"])

    def reply(request):
        return None if next(answers) is None else fakes.answer(request)

    with fakes.policy_server(reply) as port:
        policy = RemotePolicy("127.0.0.1", port, connect_timeout_s=5.0, query_timeout_s=20.0)
        policy.connect()
        with pytest.raises(PolicyError, match="broke"):
            policy.infer({"prompt": "x"}, noise=NOISE, query=QUERY)
        reply_again = policy.infer({"prompt": "x"}, noise=NOISE, query=QUERY)
        policy.close()
    assert reply_again.actions.shape == (8, 2)


def test_a_server_that_never_answers_is_an_error_that_names_the_limit():
    import threading

    release = threading.Event()

    def reply(request):
        release.wait()
        return fakes.answer(request)

    with fakes.policy_server(reply) as port:
        try:
            with pytest.raises(PolicyError, match=r"within 0.2 s; raise --args.query-timeout-s"):
                ask(port, timeout_s=0.2)
        finally:
            release.set()


def test_no_server_is_said_after_the_stated_time():
    policy = RemotePolicy(
        "127.0.0.1", launch.free_port(), connect_timeout_s=0.1, query_timeout_s=1.0
    )
    with pytest.raises(
        ConfigError, match=r"no policy server answered at ws://127.0.0.1:\d+ within 0.1 s"
    ):
        policy.connect()


def test_a_server_that_comes_back_as_another_one_is_refused():
    with fakes.policy_server() as port:
        policy = RemotePolicy("127.0.0.1", port, connect_timeout_s=5.0, query_timeout_s=20.0)
        policy.connect()
        policy.close()
    changed = {**fakes.METADATA, "checkpoint": {"name": "c", "digest": "1"}}
    with (
        fakes.policy_server(metadata=changed, port=port),
        pytest.raises(ContractError, match=r"other metadata \(checkpoint\)"),
    ):
        policy.infer({"prompt": "x"}, noise=NOISE, query=QUERY)
    policy.close()
