"""A small model-server, written from robot.cpp's public layout with plain `struct` calls.

Source: robot.cpp robot_server/protocol.h, robot_server/session.cpp,
robot_client/python/model_client.py (87ec5c5). It shares no code with the client. Run as a program
(`python model_server_fake.py PORT`) it serves until it is stopped.
"""

import contextlib
import dataclasses
import socketserver
import struct
import sys
import threading
from collections.abc import Callable, Iterator

HEALTH, RESET, PREDICT = 1, 2, 3
BAD_REQUEST = 1


@dataclasses.dataclass(frozen=True)
class FakeImage:
    name: str
    width: int
    height: int
    pixels: bytes


@dataclasses.dataclass(frozen=True)
class FakeRequest:
    images: tuple[FakeImage, ...]
    state: tuple[float, ...]
    prompt: str


def message(
    op: int, request_id: int, payload: bytes, *, status: int = 0, version: int = 3
) -> bytes:
    head = struct.pack(
        "<IHHHHIIQI", 0x414C5653, version, 32, op, 0, request_id, status, len(payload), 0
    )
    return head + payload


def read_request(payload: bytes) -> FakeRequest:
    n_images, n_state, prompt_size = struct.unpack_from("<III", payload)
    position = 12
    heads = []
    for _ in range(n_images):
        heads.append(struct.unpack_from("<IIIIIIQ", payload, position))
        position += 32
    state = struct.unpack_from(f"<{n_state}f", payload, position)
    position += 4 * n_state
    prompt = payload[position : position + prompt_size].decode()
    position += prompt_size
    images = []
    for image_format, name_size, width, height, channels, stride, size in heads:
        assert (image_format, channels, stride, size) == (1, 3, 3 * width, 3 * width * height)
        name = payload[position : position + name_size].decode()
        position += name_size
        images.append(FakeImage(name, width, height, payload[position : position + size]))
        position += size
    assert position == len(payload)
    return FakeRequest(tuple(images), state, prompt)


def prediction(rows: list[list[float]], metrics: dict[str, float]) -> bytes:
    numbers = [number for row in rows for number in row]
    payload = struct.pack("<IIII", len(rows), len(rows[0]), len(numbers), len(metrics))
    for name, value in metrics.items():
        payload += struct.pack("<Id", len(name.encode()), value) + name.encode()
    return payload + struct.pack(f"<{len(numbers)}f", *numbers)


@dataclasses.dataclass
class FakeModelServer:
    """What the server answers, to be changed by a test, and what it has seen.

    `raw` replaces the whole reply to a message: (op, request id) -> bytes, None for the usual one.
    """

    health: str = "ok policy=fake"
    rows: Callable[[FakeRequest], list[list[float]]] = lambda _: [[0.1, 0.2, 0.3, 0.4]] * 8
    metrics: dict[str, float] = dataclasses.field(
        default_factory=lambda: {"server_predict_ms": 2.5}
    )
    refusal: str | None = None
    raw: Callable[[int, int], bytes | None] = lambda op, request_id: None
    log: list[str] = dataclasses.field(default_factory=list)
    requests: list[FakeRequest] = dataclasses.field(default_factory=list)
    port: int = 0

    def answer(self, op: int, request_id: int, payload: bytes) -> bytes:
        self.log.append({HEALTH: "health", RESET: "reset", PREDICT: "predict"}[op])
        raw = self.raw(op, request_id)
        if raw is not None:
            return raw
        if op == HEALTH:
            return message(op, request_id, self.health.encode())
        if op == RESET:
            return message(op, request_id, b"ok")
        if self.refusal is not None:
            return message(op, request_id, self.refusal.encode(), status=BAD_REQUEST)
        self.requests.append(read_request(payload))
        return message(op, request_id, prediction(self.rows(self.requests[-1]), self.metrics))


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        while head := self.rfile.read(32):
            _, _, _, op, _, request_id, _, size, _ = struct.unpack("<IHHHHIIQI", head)
            reply = server.fake.answer(op, request_id, self.rfile.read(size))
            if not reply:  # a test's server that hangs
                server.stopping.wait()
                return
            self.wfile.write(reply)
            if len(reply) < 32:
                return  # a test's server that dies within a reply


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = False

    def __init__(self, port: int, fake: FakeModelServer) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.fake = fake
        self.stopping = threading.Event()


@contextlib.contextmanager
def model_server(fake: FakeModelServer | None = None) -> Iterator[FakeModelServer]:
    """Serve on a free port of 127.0.0.1 until the block ends."""
    fake = fake or FakeModelServer()
    with _Server(0, fake) as server:
        fake.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield fake
        finally:
            server.stopping.set()
            server.shutdown()
            thread.join()


if __name__ == "__main__":
    with _Server(int(sys.argv[1]), FakeModelServer()) as forever:
        forever.serve_forever()
