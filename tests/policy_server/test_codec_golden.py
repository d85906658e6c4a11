"""The codec of both sides, openpi_client.msgpack_numpy, is the recorded one."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openpi_client import msgpack_numpy

from golden_data import golden_roots


def recordings() -> Iterator:
    for root in golden_roots():
        vectors = json.loads((root / "msgpack_numpy.json").read_text())["vectors"]
        for name, vector in vectors.items():
            yield pytest.param(vector, id=f"{root.parent.name}-{name}")


def revive(decoded: Any) -> Any:
    """The object that a recorded description is of."""
    if isinstance(decoded, list):
        return [revive(item) for item in decoded]
    if "ndarray" in decoded:
        values = decoded["ndarray"]
        if "S" in decoded["dtype"]:
            values = [ast.literal_eval(value) for value in values]
        return np.array(values, dtype=decoded["dtype"]).reshape(decoded["shape"])
    if "npgeneric" in decoded:
        return np.dtype(decoded["dtype"]).type(ast.literal_eval(decoded["npgeneric"]))
    if "bytes" in decoded:
        return bytes.fromhex(decoded["bytes"])
    if "py" in decoded:
        return decoded["value"]
    return {key: revive(value) for key, value in decoded.items()}


def assert_same(actual: Any, expected: Any) -> None:
    assert type(actual) is type(expected)
    if isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key, value in expected.items():
            assert_same(actual[key], value)
    elif isinstance(expected, list):
        for mine, theirs in zip(actual, expected, strict=True):
            assert_same(mine, theirs)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(actual, expected, strict=True)
        assert not actual.flags.writeable
    else:
        assert actual == expected


@pytest.mark.parametrize("vector", list(recordings()))
def test_recorded_bytes_decode_to_what_was_recorded(vector: dict[str, Any]):
    assert_same(msgpack_numpy.unpackb(bytes.fromhex(vector["hex"])), revive(vector["decoded"]))


@pytest.mark.parametrize("vector", list(recordings()))
def test_the_same_objects_encode_to_the_recorded_bytes(vector: dict[str, Any]):
    assert msgpack_numpy.packb(revive(vector["decoded"])) == bytes.fromhex(vector["hex"])


REFUSED = {
    "complex": np.zeros(2, np.complex128),
    "object": np.array([None, {}], dtype=object),
    "structured": np.zeros(2, np.dtype([("a", "<i4")])),
    "bfloat16": np.zeros(2, ml_dtypes.bfloat16),
    "jax_array": jnp.zeros(2),
    "set": {1, 2},
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("root", golden_roots(), ids=str)
def test_what_openpi_refuses_to_encode_is_refused(root: Path, name: str):
    recorded = json.loads((root / "msgpack_numpy.json").read_text())["errors"][name]
    kind, _, message = recorded.partition(": ")
    words = message.split(" '")[0]  # JAX renames its classes

    with pytest.raises(ValueError if kind == "ValueError" else TypeError) as refusal:
        msgpack_numpy.packb(REFUSED[name])

    assert words in str(refusal.value)


@pytest.mark.parametrize("root", golden_roots(), ids=str)
def test_a_map_with_a_number_as_key_is_refused_when_decoded(root: Path):
    recorded = json.loads((root / "msgpack_numpy.json").read_text())["errors"]
    with pytest.raises(ValueError, match=recorded["int_map_key_decode"].partition(": ")[2]):
        msgpack_numpy.unpackb(msgpack_numpy.packb({1: 2}))


ARRAYS = hnp.arrays(
    st.sampled_from(["<f4", "<f8", "|u1", "<i4", "<i8", "|b1"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@given(st.dictionaries(st.text(max_size=9), ARRAYS | st.text() | st.integers(-(2**63), 2**63 - 1)))
def test_decoding_undoes_encoding(message: dict[str, Any]):
    assert_same(msgpack_numpy.unpackb(msgpack_numpy.packb(message)), message)
