"""Frames in, frames out: what a request may hold, and what every reply says."""

import contextlib
import hashlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from policy_serving import pack

from golden_data import golden_roots
from policy_server.errors import RequestError
from policy_server.protocol import (
    MAX_REQUEST_BYTES,
    Inference,
    NoiseSpec,
    Request,
    decode_request,
    encode,
    make_reply,
    noise_sha256,
)

SPEC = NoiseSpec(shape=(4, 3), required=False, seed=7)
NOISE = np.arange(12, dtype=np.float32).reshape(4, 3) / 10


def decode(fields: object, spec: NoiseSpec = SPEC) -> Request:
    return decode_request(pack(fields), spec)


def test_noise_and_query_are_taken_out_of_the_observation():
    request = decode({"prompt": "lift", "noise": NOISE, "query": {"ep_id": 3, "query_idx": 0}})
    assert request.observation == {"prompt": "lift"}
    assert request.query == {"ep_id": 3, "query_idx": 0}
    assert request.noise is not None
    np.testing.assert_array_equal(request.noise, NOISE)


def test_noise_and_query_may_be_absent():
    request = decode({"prompt": "lift"})
    assert (request.noise, request.query) == (None, None)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        (NOISE[:3], r"noise has shape \(3, 3\), expected \(4, 3\) \(action_horizon, action_dim\)"),
        (NOISE[None], r"noise has shape \(1, 4, 3\)"),
        (NOISE.T, r"noise has shape \(3, 4\)"),
        (NOISE.astype(np.float64), "noise has dtype float64, expected float32"),
        (NOISE.astype(">f4"), "noise has dtype >f4, expected float32"),
        (np.where(NOISE > 1, np.nan, NOISE).astype(np.float32), "noise holds NaN or infinite"),
        (np.where(NOISE > 1, -np.inf, NOISE).astype(np.float32), "noise holds NaN or infinite"),
        (NOISE.tolist(), r"noise is a list, expected a float32 array of shape \(4, 3\)"),
    ],
)
def test_noise_that_is_not_as_announced_is_refused(noise, message):
    with pytest.raises(RequestError, match=message):
        decode({"noise": noise})


def test_a_request_without_noise_is_refused_where_it_is_required():
    with pytest.raises(RequestError, match=r"no noise .* shape \(4, 3\).*--policy\.require-noise"):
        decode({"prompt": "lift"}, NoiseSpec(shape=(4, 3), required=True, seed=0))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ([1, 2], "query is a list"),
        ({"episode": 1}, "query has the key 'episode', expected a map of ep_id, query_idx"),
        ({"ep_id": 1.5}, "query has ep_id of type float"),
        ({"ep_id": True}, "query has ep_id of type bool"),
        ({"ep_id": np.int64(3)}, "query has ep_id of type int64"),
        ({"request_id": {"a": 1}}, "query has request_id of type dict"),
    ],
)
def test_a_query_that_is_not_plain_is_refused(query, message):
    with pytest.raises(RequestError, match=message):
        decode({"query": query})


def array_map(dtype: str, data: bytes = b"\0" * 8, shape: object = (1,)) -> dict[bytes, object]:
    return {b"__ndarray__": True, b"data": data, b"dtype": dtype, b"shape": shape}


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ("hello", "is a text frame, expected a binary frame of msgpack"),
        (b"", "not valid msgpack"),
        (b"\xc1", "not valid msgpack"),
        (pack({"a": 1}) + b"\x01", "not valid msgpack"),
        (pack({"a": "x"})[:-1], "not valid msgpack"),
        (b"\x91" * 5000, "not valid msgpack"),
        (pack([1, 2]), "is a list, expected a map"),
        (pack(None), "is a NoneType, expected a map"),
        (pack(array_map("<f8")), "is a ndarray, expected a map"),
        (pack({b"image": 1}), "has the key b'image', expected keys that are text"),
        (pack({1: 1}), "not valid msgpack"),
        (pack({"a": array_map("|O")}), "array of dtype '|O', expected plain numbers"),
        (pack({"a": {"b": [array_map("O")]}}), "array of dtype 'O'"),
        (pack({"a": array_map("<c8")}), "array of dtype '<c8'"),
        (pack({"a": array_map("|V8")}), "array of dtype '|V8'"),
        (pack({"a": array_map("f4,f4")}), "array of dtype 'f4,f4'"),
        (pack({"a": array_map("<U0", shape=(10**12,))}), "array of dtype '<U0'"),
        (pack({"a": array_map("<f4", shape=(10**12,))}), "not valid msgpack"),
        (pack({"a": array_map("<f4", shape=(-2,))}), "not valid msgpack"),
        (pack({"a": array_map("<f4", shape="x")}), "not valid msgpack"),
        (pack({"a": array_map("<f4", shape=(2**63,) * 3)}), "not valid msgpack"),
        (pack({"a": {b"__ndarray__": True, b"dtype": "<f4"}}), "not valid msgpack"),
        (pack({"a": {b"__ndarray__": True}}), "array of dtype None"),
        (pack({"a": {b"__npgeneric__": True, b"dtype": "O"}}), "array of dtype 'O'"),
        (
            pack({"a": {b"__npgeneric__": True, b"dtype": "<f4", b"data": "x"}}),
            "not valid msgpack",
        ),
        (b"\0" * (MAX_REQUEST_BYTES + 1), f"at most {MAX_REQUEST_BYTES} are taken"),
    ],
)
def test_a_frame_that_is_no_request_gets_one_sentence(frame, message):
    with pytest.raises(RequestError, match=message) as caught:
        decode_request(frame, SPEC)
    assert "\n" not in str(caught.value)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_request_error(frame):
    with contextlib.suppress(RequestError):
        assert isinstance(decode_request(frame, SPEC), Request)


@given(
    st.dictionaries(
        st.text(max_size=5).filter(lambda key: key not in ("noise", "query")),
        hnp.arrays(
            st.one_of(hnp.integer_dtypes(), hnp.floating_dtypes(), hnp.boolean_dtypes()),
            hnp.array_shapes(min_dims=0, min_side=0),
        ),
        max_size=3,
    )
)
def test_arrays_arrive_with_their_bits_shapes_and_dtypes(observation):
    decoded = decode(observation).observation
    assert decoded.keys() == observation.keys()
    for key, array in observation.items():
        assert (decoded[key].shape, decoded[key].dtype) == (array.shape, array.dtype)
        assert decoded[key].tobytes() == array.tobytes()


REPLY = {
    "actions": np.zeros((2, 3)),
    "policy_timing": {"infer_ms": 12.5},
    "server_timing": {"infer_ms": 20.25, "prev_total_ms": 21.0},
}


@pytest.mark.parametrize("root", golden_roots(), ids=lambda root: root.parent.name)
def test_a_reply_is_encoded_as_openpis_server_encodes_it(root):
    path = root / "msgpack_numpy.json"
    if not path.is_file():
        pytest.skip(f"not in this selection: {path.name}")
    recorded = json.loads(path.read_text())["vectors"]["response"]["hex"]
    assert encode(REPLY).hex() == recorded


@pytest.mark.parametrize("root", golden_roots(), ids=lambda root: root.parent.name)
def test_an_observation_recorded_from_openpis_client_is_decoded(root):
    path = root / "msgpack_numpy.json"
    if not path.is_file():
        pytest.skip(f"not in this selection: {path.name}")
    vector = json.loads(path.read_text())["vectors"]["obs_libero"]
    observation = decode_request(bytes.fromhex(vector["hex"]), SPEC).observation
    assert observation["prompt"] == vector["decoded"]["prompt"]["value"]
    assert (
        observation["observation/state"].tolist()
        == (vector["decoded"]["observation/state"]["ndarray"])
    )
    assert observation["observation/image"].dtype == np.uint8


def reply_to(request: Request, noise: np.ndarray) -> dict:
    result = Inference(np.ones((4, 2), np.float32), ("state is far out",), 1.0, 5.0)
    return make_reply(request, result, noise=noise, server_timing={"infer_ms": 6.5})


def test_a_reply_to_noise_of_the_client_echoes_query_and_digest():
    reply = reply_to(decode({"noise": NOISE, "query": {"request_id": "a"}}), NOISE)
    assert (reply["noise_source"], reply["query"]) == ("client", {"request_id": "a"})
    assert reply["noise_sha256"] == hashlib.sha256(NOISE.tobytes()).hexdigest()
    assert reply["warnings"] == ["state is far out"]
    assert reply["actions"].dtype == np.float64
    assert (reply["policy_timing"], reply["server_timing"]) == (
        {"infer_ms": 5.0},
        {"infer_ms": 6.5},
    )


def test_a_reply_with_drawn_noise_says_so_and_echoes_no_query():
    reply = reply_to(decode({}), NOISE)
    assert reply["noise_source"] == "server"
    assert "not reproducible" in reply["warnings"][-1]
    assert "query" not in reply


def test_the_noise_digest_does_not_depend_on_the_memory_layout():
    assert noise_sha256(np.asfortranarray(NOISE)) == noise_sha256(NOISE)


def test_drawn_noise_depends_on_the_seed_and_the_place_in_line_only():
    assert SPEC.draw(0).dtype == np.float32
    np.testing.assert_array_equal(SPEC.draw(1), NoiseSpec((4, 3), required=True, seed=7).draw(1))
    assert not np.array_equal(SPEC.draw(0), SPEC.draw(1))
    assert not np.array_equal(SPEC.draw(0), NoiseSpec((4, 3), required=False, seed=8).draw(0))
