"""Plain HTTP on the server's port: readiness and Prometheus' page."""

import asyncio
import threading
import urllib.error

import numpy as np
import pytest
import websockets
from policy_serving import JOIN_TIMEOUT_S, get, pack, serving, stock_client
from prometheus_client.parser import text_string_to_metric_families

from policy_server.errors import RequestError
from policy_server.protocol import Inference, NoiseSpec
from policy_server.server import PolicyServer, bind

SPEC = NoiseSpec(shape=(4, 3), required=False, seed=7)


def infer(observation, noise):
    if "fault" in observation:
        raise ValueError("a fault of ours")
    if "prompt" not in observation:
        raise RequestError("the request lacks 'prompt'.")
    return Inference(np.zeros((4, 2)), (), 1.0, 2.0)


def scrape(port: int) -> dict[str, float]:
    """Every sample, by its name and its label's value."""
    status, content_type, page = get(port, "/metrics")
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_prometheus_reads_results_times_and_connections():
    with serving(infer, {}, SPEC) as port:
        before = scrape(port)
        with stock_client(port) as client:
            for _ in range(3):
                client.infer({"prompt": "lift"})
            with pytest.raises(RuntimeError, match="lacks 'prompt'"):
                client.infer({})
            with pytest.raises(RuntimeError, match="internal error"):
                client.infer({"fault": True})
        with stock_client(port):
            after = scrape(port)
    assert [before[f"policy_requests_total {name}"] for name in ("ok", "refused", "fault")] == [
        0
    ] * 3
    assert after["policy_requests_total ok"] == 3
    assert after["policy_requests_total refused"] == 1
    assert after["policy_request_seconds_count"] == after["policy_request_seconds_bucket +Inf"] == 5
    assert after["policy_request_seconds_sum"] > 0
    assert (before["policy_connections"], after["policy_connections"]) == (0, 1)
    assert after["policy_unanswered_requests"] == 0


def test_two_servers_of_one_process_count_on_their_own():
    with serving(infer, {}, SPEC) as one, serving(infer, {}, SPEC) as two:
        with stock_client(one) as client:
            client.infer({"prompt": "lift"})
        assert scrape(two)["policy_requests_total ok"] == 0


def test_a_server_that_stops_is_healthy_and_not_ready_while_it_finishes_the_running_query():
    entered, release = threading.Event(), threading.Event()

    def held(observation, noise):
        entered.set()
        assert release.wait(JOIN_TIMEOUT_S)
        return infer(observation, noise)

    listener = bind("127.0.0.1", 0)
    listener.listen()
    server = PolicyServer(held, {}, SPEC)
    port = listener.getsockname()[1]

    async def scenario() -> list[tuple[int, str]]:
        running = asyncio.create_task(server.run(listener))
        async with websockets.connect(f"ws://127.0.0.1:{port}") as client:
            await client.recv()
            await client.send(pack({"prompt": "lift"}))
            assert await asyncio.to_thread(entered.wait, JOIN_TIMEOUT_S)
            answers = [await asyncio.to_thread(status_and_text, port)]
            server.stop()
            answers.append(await asyncio.to_thread(status_and_text, port))
            assert (await asyncio.to_thread(get, port, "/healthz"))[0] == 200
            release.set()
            await client.recv()
        await running
        return answers

    assert asyncio.run(scenario()) == [(200, "ready\n"), (503, "stopping\n")]


def status_and_text(port: int) -> tuple[int, str]:
    try:
        status, _, text = get(port, "/readyz")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    return status, text
