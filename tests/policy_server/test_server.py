"""The server on a real websocket, with openpi's unchanged client and a policy made up here."""

import asyncio
import concurrent.futures
import json
import logging
import re
import socket
import threading
import urllib.error

import numpy as np
import pytest
import websockets.sync.client
from openpi_client import msgpack_numpy
from policy_serving import get, pack, serving, stock_client
from websockets.exceptions import ConnectionClosed, ConnectionClosedError

from golden_data import golden_roots
from policy_server.errors import ConfigError, RequestError
from policy_server.protocol import MAX_REQUEST_BYTES, Inference, NoiseSpec
from policy_server.server import PolicyServer, bind

SPEC = NoiseSpec(shape=(4, 3), required=False, seed=7)
METADATA = {"protocol": {"name": "test", "version": 1}, "arm": "mine"}
NOISE = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
OBSERVATION = {"prompt": "lift", "state": np.arange(3.0)}


def infer(observation, noise):
    """A policy whose actions depend on the state and the noise."""
    if "state" not in observation:
        raise RequestError("the request lacks 'state'.")
    return Inference(noise[:, :2] * observation["state"][1] + 1.0, (), 1.0, 2.0)


@pytest.fixture
def port():
    with serving(infer, METADATA, SPEC) as port:
        yield port


@pytest.fixture
def client(port):
    with stock_client(port) as client:
        yield client


def test_the_stock_client_gets_the_metadata_first(client):
    assert client.get_server_metadata() == METADATA


def test_the_same_noise_gives_the_same_bits_and_other_noise_others(client):
    first = client.infer({**OBSERVATION, "noise": NOISE})
    other = client.infer({**OBSERVATION, "noise": NOISE + np.float32(0.5)})
    again = client.infer({**OBSERVATION, "noise": NOISE})
    assert (first["actions"].dtype, first["actions"].shape) == (np.float64, (4, 2))
    assert first["actions"].tobytes() == again["actions"].tobytes()
    assert not np.array_equal(first["actions"], other["actions"])
    assert first["noise_source"] == "client"


def test_the_previous_total_time_comes_from_the_second_answer_on(client):
    first, second = (client.infer(OBSERVATION)["server_timing"] for _ in range(2))
    assert set(first) == {"infer_ms", "queue_ms", "prepare_ms", "model_ms"}
    assert set(second) == {*first, "prev_total_ms"}
    assert second["prev_total_ms"] >= first["infer_ms"]


def test_without_noise_the_server_draws_by_seed_and_place_in_line(port):
    def first_two():
        with stock_client(port) as client:
            return [client.infer(OBSERVATION)["actions"].tobytes() for _ in range(2)]

    one, two = first_two(), first_two()
    assert one == two
    assert one[0] != one[1]


def test_noise_of_the_client_does_not_move_the_noise_that_the_server_draws(port):
    with stock_client(port) as client:
        drawn = client.infer(OBSERVATION)
    with stock_client(port) as client:
        client.infer({**OBSERVATION, "noise": NOISE})
        again = client.infer(OBSERVATION)
    assert drawn["actions"].tobytes() == again["actions"].tobytes()
    assert drawn["noise_source"] == "server"


BAD_FRAMES = {
    "text": "hello",
    "garbage": b"\xc1\xff\x00",
    "empty": b"",
    "no map": pack([1, 2]),
    "missing key": pack({"prompt": "lift"}),
    "wrong noise shape": pack({**OBSERVATION, "noise": NOISE[:2]}),
    "wrong noise dtype": pack({**OBSERVATION, "noise": NOISE.astype(float)}),
    "NaN in the noise": pack({**OBSERVATION, "noise": NOISE * np.float32("nan")}),
    "query of another kind": pack({**OBSERVATION, "query": 3}),
    "too large": bytes(MAX_REQUEST_BYTES + 1),
}


@pytest.mark.parametrize("frame", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_a_bad_request_gets_one_sentence_and_the_connection_lives_on(client, frame):
    before = client.infer({**OBSERVATION, "noise": NOISE})
    client._ws.send(frame)
    answer = client._ws.recv()
    after = client.infer({**OBSERVATION, "noise": NOISE})
    assert isinstance(answer, str)
    assert re.fullmatch(r"[^\n]{10,200}\.", answer)
    assert before["actions"].tobytes() == after["actions"].tobytes()


def test_the_stock_client_raises_the_servers_sentence(client):
    with pytest.raises(RuntimeError, match=r"the request lacks 'state'\.$"):
        client.infer({"prompt": "lift"})


def test_a_warning_stands_in_every_reply_and_once_in_the_log(caplog):
    def odd(observation, noise):
        return Inference(noise[:, :2], ("the state is far out",), 1.0, 2.0)

    with serving(odd, METADATA, SPEC) as port, stock_client(port) as client:
        replies = [client.infer({**OBSERVATION, "noise": NOISE}) for _ in range(3)]
    assert [reply["warnings"] for reply in replies] == [["the state is far out"]] * 3
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "the state is far out" in record.getMessage()


def test_a_fault_of_the_server_is_an_id_on_the_wire_and_a_traceback_in_the_log(caplog):
    def broken(observation, noise):
        return {}["secret"]

    with serving(broken, METADATA, SPEC) as port:
        with stock_client(port) as client:
            with pytest.raises(RuntimeError, match=r"internal error [0-9a-f]{8}; ") as caught:
                client.infer(OBSERVATION)
            assert "secret" not in str(caught.value)
            with pytest.raises(ConnectionClosedError) as closed:
                client.infer(OBSERVATION)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1011
        with stock_client(port) as client:
            assert client.get_server_metadata() == METADATA
    (record,) = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert record.getMessage().split(",")[0] in str(caught.value)
    assert record.exc_text is not None
    assert "KeyError: 'secret'" in record.exc_text


@pytest.mark.parametrize("root", golden_roots(), ids=lambda root: root.parent.name)
def test_health_checks_and_other_requests_are_answered_as_by_openpis_server(port, root):
    recorded = json.loads((root / "wire_transcript.json").read_text())
    status, headers, body = recorded["healthz"]
    assert get(port, "/healthz") == (status, headers["Content-Type"], body)
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(port, "/")
    status, body = recorded["plain_http_get_/"]
    assert refused.value.code == status
    # the first line quotes the Connection header that the asking program sent
    assert refused.value.read().decode().splitlines()[1:] == body.splitlines()[1:]
    refused.value.close()


class HeldPolicy:
    """Answers no query before it is let go."""

    def __init__(self):
        self.entered, self.release = threading.Event(), threading.Event()
        self.threads = set()

    def __call__(self, observation, noise):
        self.threads.add(threading.current_thread())
        self.entered.set()
        assert self.release.wait(30)
        return infer(observation, noise)


def test_health_checks_and_new_connections_are_answered_while_a_query_runs():
    held = HeldPolicy()
    with (
        serving(held, METADATA, SPEC) as port,
        stock_client(port) as client,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        query = pool.submit(client.infer, OBSERVATION)
        assert held.entered.wait(30)
        assert get(port, "/healthz")[0] == 200
        with stock_client(port) as second:
            assert second.get_server_metadata() == METADATA
        assert not query.done()
        held.release.set()
        assert query.result(30)["actions"].shape == (4, 2)


def test_queries_of_several_connections_run_in_one_thread():
    held = HeldPolicy()
    held.release.set()
    with serving(held, METADATA, SPEC) as port:
        for _ in range(3):
            with stock_client(port) as client:
                client.infer(OBSERVATION)
    assert len(held.threads) == 1


def test_a_client_that_leaves_during_its_query_disturbs_nobody(caplog):
    held = HeldPolicy()
    with serving(held, METADATA, SPEC) as port:
        with websockets.sync.client.connect(f"ws://127.0.0.1:{port}") as leaving:
            leaving.recv()
            leaving.send(pack(OBSERVATION))
            assert held.entered.wait(30)
        held.release.set()
        with stock_client(port) as client:
            assert client.infer(OBSERVATION)["actions"].shape == (4, 2)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_stopping_answers_the_running_query_and_then_closes():
    held = HeldPolicy()
    listener = bind("127.0.0.1", 0)
    listener.listen()
    server = PolicyServer(held, METADATA, SPEC)

    async def scenario():
        running = asyncio.create_task(server.run(listener))
        port = listener.getsockname()[1]
        async with websockets.connect(f"ws://127.0.0.1:{port}") as client:
            await client.recv()
            await client.send(pack({**OBSERVATION, "noise": NOISE}))
            assert await asyncio.to_thread(held.entered.wait, 30)
            server.stop()
            held.release.set()
            answer = await client.recv()
            with pytest.raises(ConnectionClosed):
                await client.recv()
        await running
        return msgpack_numpy.unpackb(answer)

    assert asyncio.run(scenario())["actions"].shape == (4, 2)


def test_each_connection_logs_its_queries_when_it_closes(caplog):
    caplog.set_level(logging.INFO, logger="policy_server")
    with serving(infer, METADATA, SPEC) as port, stock_client(port) as client:
        client.infer(OBSERVATION)
        client.infer(OBSERVATION)
    lines = [r.getMessage() for r in caplog.records if r.name.startswith("policy_server")]
    assert lines[0] == f"listening on ws://127.0.0.1:{port}"
    assert re.fullmatch(r"127.0.0.1:\d+ connected", lines[1])
    assert re.fullmatch(r"127.0.0.1:\d+ disconnected: 2 queries, median [\d.]+ ms", lines[2])


def test_a_connection_that_is_no_websocket_is_one_line_in_the_log(caplog):
    caplog.set_level(logging.INFO, logger="policy_server")
    with serving(infer, METADATA, SPEC) as port:
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(urllib.error.HTTPError) as refused:
            get(port, "/")
        refused.value.close()
    _, *rest = caplog.records
    assert len(rest) == 2
    for record in rest:
        assert record.getMessage().startswith("a connection was no websocket: ")
        assert record.exc_info is None


def test_a_bound_port_refuses_connections_until_the_server_listens():
    listener = bind("127.0.0.1", 0)
    with listener, pytest.raises(ConnectionRefusedError):
        websockets.sync.client.connect(f"ws://127.0.0.1:{listener.getsockname()[1]}")


def test_a_port_in_use_is_refused_by_name(port):
    with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{port} \(.*--port"):
        bind("127.0.0.1", port)


def test_a_port_taken_between_binding_and_listening_is_refused():
    first = bind("127.0.0.1", 0)
    second = bind("127.0.0.1", first.getsockname()[1])
    with first, second:
        first.listen()
        with pytest.raises(ConfigError, match="cannot listen on"):
            asyncio.run(PolicyServer(infer, METADATA, SPEC).run(second))


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("127.0.0.1", 70000, "--port 70000 is no port"),
        ("no.such.host.invalid", 0, "--host 'no.such.host.invalid' is not a known address"),
        ("192.0.2.1", 0, r"cannot listen on 192\.0\.2\.1:0"),
    ],
)
def test_an_impossible_address_is_refused(host, port, message):
    with pytest.raises(ConfigError, match=message):
        bind(host, port)
