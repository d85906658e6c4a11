"""What a hostile or broken peer sends over a real websocket: the server says so and lives on."""

import logging
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import websockets.sync.client
from policy_serving import JOIN_TIMEOUT_S, get, pack, serving, stock_client
from websockets.exceptions import ConnectionClosedError

from policy_server.errors import ConfigError
from policy_server.protocol import MAX_REQUEST_BYTES, Inference, NoiseSpec
from policy_server.server import bind

SPEC = NoiseSpec(shape=(4, 3), required=False, seed=7)
NOISE = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
GOOD = {"prompt": "lift", "state": np.arange(3.0), "noise": NOISE}


def infer(observation, noise):
    return Inference(noise[:, :2] * observation["state"][1] + 1.0, (), 1.0, 2.0)


@pytest.fixture
def port(caplog):
    caplog.set_level(logging.INFO, logger="policy_server")
    with serving(infer, {}, SPEC) as port:
        yield port


def good_answer(port: int) -> bytes:
    with stock_client(port) as client:
        return client.infer(GOOD)["actions"].tobytes()


@contextmanager
def raw_websocket(port: int) -> Iterator[socket.socket]:
    """A TCP connection after the websocket's handshake and the metadata of no keys."""
    with socket.create_connection(("127.0.0.1", port), JOIN_TIMEOUT_S) as raw:
        raw.sendall(
            b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        received = b""
        while not received.endswith(b"\r\n\r\n\x82\x01\x80"):
            received += raw.recv(4096)
        yield raw


def test_a_message_that_declares_a_gibibyte_is_cut_off_before_it_is_sent(port, caplog):
    before = good_answer(port)
    with raw_websocket(port) as raw:
        raw.sendall(b"\x82\xff" + struct.pack("!Q", 2**30) + b"mask")
        answer = raw.recv(4096)
    assert (answer[0], struct.unpack("!H", answer[2:4])) == (0x88, (1009,))
    assert good_answer(port) == before
    assert re.search(r"0 queries; ended here: 1009 \(message too big\)", caplog.text)


def test_a_message_that_grows_by_fragments_is_cut_off_too(port):
    before = good_answer(port)
    part = bytes(MAX_REQUEST_BYTES)
    with websockets.sync.client.connect(f"ws://127.0.0.1:{port}") as client:
        client.recv()
        with pytest.raises(ConnectionClosedError, match="1009"):
            client.send(part for _ in range(8))
    assert good_answer(port) == before


OBJECT_ARRAY = {b"__ndarray__": True, b"data": b"\x80\x04K*.", b"dtype": "|O", b"shape": [1]}
BAD_FRAMES = {
    "deep nesting": (b"\x91" * 100_000, "not valid msgpack"),
    "a list of 4 billion": (b"\x81\xa1a\xdd\xff\xff\xff\xff", "not valid msgpack"),
    "a map of 4 billion": (b"\xdf\xff\xff\xff\xff", "not valid msgpack"),
    "4 GiB of bytes": (b"\x81\xa1a\xc6\xff\xff\xff\xff", "not valid msgpack"),
    "4 GiB of text": (b"\x81\xa1a\xdb\xff\xff\xff\xff", "not valid msgpack"),
    "nested lists of 16 million, declared": (
        (b"\xdd\x00\xf0\x00\x00" * 500).ljust(MAX_REQUEST_BYTES, b"\x01"),
        "max_array_len",
    ),
    "a million empty lists": (
        pack({"a": [[[]] * 1000] * 1000}),
        "more than 10000 maps and lists",
    ),
    "a million empty maps": (pack([[{}] * 1000] * 1000), "more than 10000 maps and lists"),
    "pickled objects": (pack({"state": OBJECT_ARRAY}), r"array of dtype '\|O'"),
    "text": ("hello", "is a text frame"),
}


@pytest.mark.parametrize(("frame", "sentence"), BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_a_bomb_or_another_language_is_one_sentence_and_one_line(port, caplog, frame, sentence):
    before = good_answer(port)
    with stock_client(port) as client:
        client._ws.send(frame)
        answer = client._ws.recv()
        assert client.infer(GOOD)["actions"].tobytes() == before
    assert re.fullmatch(rf"[^\n]*{sentence}[^\n]*\.", str(answer))
    (line,) = (r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)
    assert line.endswith(f"refused, the first time: {answer}")


def test_a_connection_of_bad_requests_is_counted_not_logged_again_and_again(port, caplog):
    with stock_client(port) as client:
        for _ in range(5):
            client._ws.send("hello")
            client._ws.recv()
    with stock_client(port):
        lines = [r.getMessage() for r in caplog.records]
    assert sum("refused, the first time" in line for line in lines) == 1
    assert sum(line.endswith("disconnected: 0 queries, 5 refused") for line in lines) == 1


def test_clients_that_say_nothing_keep_nobody_waiting(port):
    before = good_answer(port)
    with ExitStack() as idle:
        idle.enter_context(socket.create_connection(("127.0.0.1", port)))  # no handshake either
        idle.enter_context(raw_websocket(port))
        assert good_answer(port) == before


def test_64_idle_connections_do_not_keep_a_65th_from_its_bits(port):
    before = good_answer(port)
    with ExitStack() as idle:
        for _ in range(64):
            idle.enter_context(stock_client(port))
        assert "policy_connections 64.0" in get(port, "/metrics")[2]
        assert good_answer(port) == before


def test_a_second_server_on_the_port_is_refused_and_the_first_answers_on(port):
    before = good_answer(port)
    with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{port} \("):
        bind("127.0.0.1", port)
    assert good_answer(port) == before
