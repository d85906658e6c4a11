"""Normalisation gives openpi's numbers, and refuses the widths that openpi bends to fit."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from golden_data import golden_roots
from policy_server.errors import NormStatsError
from policy_server.norm_stats import FieldStats, normalize, unnormalize
from policy_server.norm_stats_file import load_norm_stats

FUNCTIONS = {"norm": normalize, "unnorm": unnormalize}


def recordings(*, matching: bool) -> Iterator:
    for root in golden_roots():
        outcomes = json.loads((root / "normalization.json").read_text())
        for name in outcomes:
            case, function, mode = name.split("/")
            if case.startswith("same") == matching:
                yield pytest.param(root, case, function, mode, id=f"{root.parent.name}-{name}")


def load(root: Path, case: str) -> tuple[dict[str, np.ndarray], FieldStats]:
    with np.load(root / "normalization.npz") as file:
        prefix = f"{case}/"
        arrays = {key.removeprefix(prefix): file[key] for key in file.files if prefix in key}
    return arrays, FieldStats(*(arrays[key] for key in ("mean", "std", "q01", "q99")))


@pytest.mark.parametrize(("root", "case", "function", "mode"), list(recordings(matching=True)))
def test_numbers_are_those_of_openpi(
    root: Path, case: str, function: str, mode: Literal["zscore", "quantile"]
):
    arrays, stats = load(root, case)
    assert stats.std[0] == 0
    assert stats.q01 is not None
    assert stats.q99 is not None
    assert stats.q01[1] == stats.q99[1]

    result = FUNCTIONS[function](arrays["x"], stats, mode)

    np.testing.assert_allclose(result, arrays[f"{function}_{mode}"], rtol=1e-12, strict=True)


@pytest.mark.parametrize(("root", "case", "function", "mode"), list(recordings(matching=False)))
def test_a_signal_of_another_width_is_refused_whatever_openpi_does(
    root: Path, case: str, function: str, mode: Literal["zscore", "quantile"]
):
    arrays, stats = load(root, case)
    width = arrays["x"].shape[-1]

    with pytest.raises(NormStatsError, match=rf"{width} numbers and its norm stats {stats.width}"):
        FUNCTIONS[function](arrays["x"], stats, mode)


@pytest.mark.parametrize("root", golden_roots(), ids=str)
def test_a_file_of_openpi_is_read(root: Path):
    stats = load_norm_stats(root / "norm_stats_example.json")

    for field in (stats.state, stats.actions):
        np.testing.assert_array_equal(field.mean, [0.0, 1.0], strict=True)
        np.testing.assert_array_equal(field.std, [1.0, 2.0], strict=True)
        np.testing.assert_array_equal(field.quantiles(), [[-1.0, -2.0], [1.0, 2.0]])


@pytest.mark.parametrize("root", golden_roots(), ids=str)
def test_a_file_without_actions_is_refused_though_openpi_reads_it(root: Path):
    with pytest.raises(NormStatsError, match=r"fields \['state'\], expected 'actions' and 'state'"):
        load_norm_stats(root / "norm_stats_example_noquant.json")
