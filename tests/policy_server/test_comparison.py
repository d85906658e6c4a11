"""Two servers are compared from outside, by the hash of their self-checks."""

import numpy as np
import pytest
from policy_serving import serving

from policy_server.comparison import compare, fetch_metadata
from policy_server.errors import ConfigError
from policy_server.protocol import Inference, NoiseSpec
from policy_server.server import bind

SPEC = NoiseSpec(shape=(4, 3), required=False, seed=7)


def infer(observation, noise):
    return Inference(np.zeros((4, 2)), (), 1.0, 2.0)


def announced(sha256: str, **fields: object) -> dict:
    return {"determinism": {"selfcheck_sha256": sha256}, "checkpoint": {"digest": "d"}, **fields}


def test_the_announcement_of_a_running_server_is_read():
    with serving(infer, announced("abc"), SPEC, api_key="k") as port:
        assert fetch_metadata(f"127.0.0.1:{port}", "k") == announced("abc")
        assert fetch_metadata(f"ws://127.0.0.1:{port}", "k") == announced("abc")
        with pytest.raises(ConfigError, match=r"HTTP 401; give its key with --api-key-file"):
            fetch_metadata(f"127.0.0.1:{port}", None)


@pytest.mark.parametrize("metadata", [{}, {"determinism": {}}, {"determinism": "yes"}])
def test_a_server_without_a_self_check_cannot_be_compared(metadata):
    with (
        serving(infer, metadata, SPEC) as port,
        pytest.raises(ConfigError, match="publishes no self-check"),
    ):
        fetch_metadata(f"127.0.0.1:{port}", None)


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "nonsense", "127.0.0.1:99999", "ws://"])
def test_an_address_where_no_server_answers_is_one_sentence(address):
    with bind("127.0.0.1", 0) as unopened:
        where = address.format(port=unopened.getsockname()[1])
        with pytest.raises(ConfigError, match=r"no policy server that answers .*HOST:PORT") as said:
            fetch_metadata(where, None)
    assert "\n" not in str(said.value)


def test_different_hashes_come_with_what_the_announcements_differ_in(capsys):
    own, theirs = announced("a" * 64), announced("b" * 64, checkpoint={"digest": "e"}, port=1)
    assert not compare(own, theirs, "h:1")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"here {'a' * 64}", f"h:1 {'b' * 64}", "different: they differ in checkpoint"]
