"""Norm stats files: what is refused, and what may be done to the numbers."""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy_server.errors import NormStatsError
from policy_server.norm_stats import (
    FieldStats,
    NormStats,
    normalize,
    pad_zscore,
    unnormalize,
)
from policy_server.norm_stats_file import encode_norm_stats, load_norm_stats

GOOD = {"mean": [0.5, 1.0], "std": [1.0, 0.0], "q01": [-1.0, 2.0], "q99": [1.0, 2.0]}


def write(path: Path, **fields: Any) -> Path:
    path.write_text(json.dumps({"norm_stats": {"state": GOOD, "actions": GOOD, **fields}}))
    return path


def field(width: int, *, quantiles: bool = True) -> FieldStats:
    edge = np.arange(1.0, width + 1) if quantiles else None
    return FieldStats(
        mean=np.arange(width) / 10,
        std=np.arange(1.0, width + 1),
        q01=None if edge is None else -edge,
        q99=edge,
    )


def make_stats(state: int, actions: int) -> NormStats:
    return NormStats(state=field(state), actions=field(actions), sha256="ab", source="here")


def test_the_digest_is_that_of_the_files_bytes(tmp_path: Path):
    path = write(tmp_path / "norm_stats.json")
    assert load_norm_stats(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("state", "complaint"),
    [
        ({**GOOD, "mean": [0.0, float("nan")]}, "state: mean holds NaN or infinity"),
        ({**GOOD, "q99": [1.0, float("inf")]}, "state: q99 holds NaN or infinity"),
        ({**GOOD, "std": [1.0, -1e-9]}, "state: std is negative in dimension 1"),
        ({**GOOD, "q01": [2.0, 0.0]}, "state: q01 exceeds q99 in dimension 0"),
        ({**GOOD, "std": [1.0]}, "state: std has 1 numbers and mean 2"),
        ({**GOOD, "q01": [1.0] * 3}, "state: q01 has 3 numbers and mean 2"),
        ({**GOOD, "q99": None}, "state: one of q01 and q99 is there without the other"),
        ({**GOOD, "mean": [[0.0, 1.0]]}, "state.mean is missing or no list of numbers"),
        ({**GOOD, "mean": [True, 1.0]}, "state.mean is missing or no list of numbers"),
        ({**GOOD, "mean": ["0", 1.0]}, "state.mean is missing or no list of numbers"),
        ({**GOOD, "std": None}, "state.std is missing or no list of numbers"),
        ({**GOOD, "mean": []}, "state.mean is missing or no list of numbers"),
        ({**GOOD, "mean": [10**400, 1]}, "state.mean holds a number beyond float64"),
        ({**GOOD, "min": [0.0, 0.0]}, r"'state' holds \['min'\]"),
        ([1, 2], "'state' is no object"),
    ],
)
def test_impossible_numbers_are_refused_by_field_and_file(
    tmp_path: Path, state: Any, complaint: str
):
    path = write(tmp_path / "norm_stats.json", state=state)
    with pytest.raises(NormStatsError, match=complaint) as refusal:
        load_norm_stats(path)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{", "are not JSON"),
        ("\xff", "are not JSON"),
        ("[]", "no object 'norm_stats' at the top"),
        (json.dumps({"state": GOOD, "actions": GOOD}), "no object 'norm_stats' at the top"),
        (json.dumps({"norm_stats": {}, "version": 1}), r"hold \['version'\] beside"),
        (json.dumps({"norm_stats": {"actions": GOOD}}), r"have the fields \['actions'\]"),
        (json.dumps({"norm_stats": {"state": GOOD, "actions": GOOD, "rest": GOOD}}), "'rest'"),
    ],
)
def test_a_file_of_another_format_is_refused(tmp_path: Path, content: str, complaint: str):
    path = tmp_path / "norm_stats.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(NormStatsError, match=complaint):
        load_norm_stats(path)


def test_a_file_that_is_written_is_read_back_to_the_last_bit(tmp_path: Path):
    state, actions = field(3), FieldStats(mean=np.array([0.1, 1e-300]), std=np.array([1 / 3, 5.0]))
    path = tmp_path / "norm_stats.json"
    path.write_bytes(encode_norm_stats(state, actions))

    stats = load_norm_stats(path)

    np.testing.assert_equal(stats.state.arrays(), state.arrays())
    np.testing.assert_equal(stats.actions.arrays(), actions.arrays())


def test_a_missing_file_is_one_sentence_that_names_the_flag(tmp_path: Path):
    with pytest.raises(NormStatsError, match=r"cannot be read .* --policy\.norm-stats"):
        load_norm_stats(tmp_path / "norm_stats.json")


def test_a_file_without_quantiles_is_refused_for_quantile_mode_only(tmp_path: Path):
    without = {**GOOD, "q01": None, "q99": None}
    stats = load_norm_stats(write(tmp_path / "norm_stats.json", actions=without))

    stats.check_mode("zscore")
    with pytest.raises(NormStatsError, match="no q01 and q99 for 'actions'"):
        stats.check_mode("quantile")
    with pytest.raises(NormStatsError, match="no q01 and q99"):
        normalize(np.zeros(2), stats.actions, "quantile")


def test_padding_leaves_the_signal_and_passes_zeros_through():
    narrow = make_stats(state=16, actions=12)

    wide = pad_zscore(narrow, 32)

    signal = np.linspace(-3, 3, 16)
    padded = normalize(np.append(signal, np.zeros(16)), wide.state, "zscore")
    np.testing.assert_array_equal(padded[:16], normalize(signal, narrow.state, "zscore"))
    np.testing.assert_array_equal(padded[16:], np.zeros(16))
    assert (wide.state.width, wide.actions.width, narrow.state.width) == (32, 32, 16)
    assert wide.actions.std[-1] == 1.0


def test_padding_leaves_a_note_and_no_quantiles():
    wide = pad_zscore(make_stats(state=16, actions=32), 32)

    assert wide.notes == ("state stats padded from 16 to 32 numbers with mean 0 and std 1",)
    assert wide.state.q01 is None
    assert wide.actions.q01 is not None
    assert wide.sha256 == "ab"


def test_stats_wider_than_the_model_are_not_padded():
    with pytest.raises(NormStatsError, match="33 numbers for 'state', expected at most"):
        pad_zscore(make_stats(state=33, actions=12), 32)


@pytest.mark.parametrize("mode", ["zscore", "quantile"])
@given(raw=hnp.arrays(np.float64, (4, 3), elements=st.floats(-100, 100)))
def test_unnormalize_undoes_normalize(raw: np.ndarray, mode: Literal["zscore", "quantile"]):
    restored = unnormalize(normalize(raw, field(3), mode), field(3), mode)
    np.testing.assert_allclose(restored, raw, atol=1e-10)


def test_nothing_is_clipped():
    far = normalize(np.array([-100.0, 100.0]), field(2), "quantile")
    assert far[0] < -1
    assert far[1] > 1
