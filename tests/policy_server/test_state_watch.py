"""Wrong stats are noticed, right ones are not: on states drawn from the stats themselves."""

import dataclasses

import numpy as np
import pytest

import golden_data
from policy_server.norm_stats import FieldStats, normalize
from policy_server.norm_stats_file import load_norm_stats
from policy_server.robots import ROBOTS
from policy_server.state_watch import far_out_warning

ROBOT = ROBOTS["panda_omron"]
DEMO = load_norm_stats(golden_data.REPO / "norm_stats" / "demo" / "norm_stats.json").state
MODES = ("zscore", "quantile")
N = 2000
# where base-first order (RoboCasa's datasets) puts the numbers of the policy's order
BASE_FIRST = [*range(7, 14), *range(7), 14, 15]


def draws(stats: FieldStats, seed: int = 0) -> np.ndarray:
    """States with the mean and std of `stats`, within its quantiles' reach, shape (N, width)."""
    rng = np.random.default_rng(seed)
    return stats.mean + stats.std * rng.standard_normal((N, stats.width)) * (stats.std < 1)


def warned_share(states: np.ndarray, stats: FieldStats, mode) -> float:
    warnings = [far_out_warning(normalize(s, stats, mode), ROBOT.state_layout) for s in states]
    return float(np.mean([w is not None for w in warnings]))


def moved(stats: FieldStats, shift: float) -> FieldStats:
    """Stats of another arm: the same robot, its base elsewhere by `shift` metres."""
    by = np.zeros(stats.width)
    by[7:9] = shift
    assert stats.q01 is not None
    assert stats.q99 is not None
    return dataclasses.replace(stats, mean=stats.mean + by, q01=stats.q01 + by, q99=stats.q99 + by)


@pytest.mark.parametrize("mode", MODES)
def test_right_stats_stay_silent_on_their_own_states(mode):
    states = draws(DEMO)
    constant = DEMO.std == 0  # drawn exactly at their mean
    assert (states[:, constant] == DEMO.mean[constant]).all()
    assert warned_share(states, DEMO, mode) < 0.001


@pytest.mark.parametrize("mode", MODES)
def test_the_state_in_the_datasets_order_is_noticed_at_every_request(mode):
    states = draws(DEMO)
    states[:, :16] = states[:, BASE_FIRST]
    assert warned_share(states, DEMO, mode) == 1.0


@pytest.mark.parametrize("mode", MODES)
def test_the_stats_of_an_arm_with_another_base_position_are_noticed(mode):
    assert warned_share(draws(moved(DEMO, 1.0)), DEMO, mode) > 0.99
    assert warned_share(draws(DEMO), moved(DEMO, 1.0), mode) > 0.99


def test_the_warning_names_the_parts_how_far_they_are_and_what_to_check():
    state = np.zeros(32)
    state[[0, 8]] = 5.5, -40.0
    warning = far_out_warning(state, ROBOT.state_layout)
    assert warning is not None
    assert "end_effector_position_relative[0] 5.5" in warning
    assert "base_position[1] -40" in warning
    assert "norm stats" in warning


def test_padding_is_not_judged():
    state = np.zeros(32)
    state[16:] = 1e6
    assert far_out_warning(state, ROBOT.state_layout) is None


@pytest.mark.parametrize("value", [4.99, -4.99])
def test_what_lies_within_is_silent(value):
    assert far_out_warning(np.full(16, value), ROBOT.state_layout) is None
