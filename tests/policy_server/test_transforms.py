"""Padding, relative actions and ALOHA's units."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden_data import golden_roots
from policy_server.transforms import (
    aloha_actions_from_pi,
    aloha_state_to_pi,
    make_mask,
    pad_to_width,
    to_absolute,
)


@pytest.fixture(params=golden_roots(), ids=str)
def recorded(request: pytest.FixtureRequest) -> dict[str, Any]:
    root: Path = request.param
    return json.loads((root / "actions_transforms.json").read_text())


def test_masks_are_spelt_as_in_openpi(recorded: dict[str, Any]):
    assert list(make_mask(6, -1, 6, -1)) == recorded["make_bool_mask(6,-1,6,-1)"]


def test_relative_actions_become_openpis_absolute_ones(recorded: dict[str, Any]):
    actions, state = np.array(recorded["actions_in"]), np.array(recorded["state"])
    mask = np.array(recorded["mask"])

    np.testing.assert_array_equal(to_absolute(actions, state, mask), recorded["absolute"])
    np.testing.assert_array_equal(
        to_absolute(np.array(recorded["delta"]), state, mask), recorded["actions_in"]
    )


def test_padding_appends_zeros_and_never_cuts(recorded: dict[str, Any]):
    actions = np.array(recorded["actions_in"])

    np.testing.assert_array_equal(pad_to_width(actions, 5), recorded["pad_to_5"])
    np.testing.assert_array_equal(pad_to_width(actions, 2), recorded["pad_to_2_noop"])


def read_only(*shape: int) -> np.ndarray:
    array = np.full(shape, 0.5)
    array.flags.writeable = False
    return array


def test_alohas_units_change_in_a_new_array():
    state, actions = read_only(14), read_only(50, 14)

    assert aloha_state_to_pi(state)[1] == -0.5
    assert aloha_actions_from_pi(actions)[3, 1] == -0.5
    assert (state == 0.5).all()
    assert (actions == 0.5).all()


def test_an_open_aloha_gripper_is_a_larger_angle_than_a_closed_one():
    closed, opened = np.zeros(14), np.zeros(14)
    opened[[6, 13]] = 1.0

    assert (aloha_state_to_pi(opened) > aloha_state_to_pi(closed))[[6, 13]].all()


def test_a_gripper_opening_beyond_its_travel_stays_finite():
    state = np.zeros(14)
    state[[6, 13]] = 5.0
    assert np.isfinite(aloha_state_to_pi(state)).all()
