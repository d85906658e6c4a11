import copy
import dataclasses

import client_fakes as fakes
import pytest

from sim_client.contract import Needs, check_contract
from sim_client.errors import ContractError
from sim_client.robots import PANDA_OMRON_ACTION

NEEDS = Needs("point", fakes.STATE_LAYOUT, fakes.ACTION_LAYOUT, fakes.IMAGE_KEYS, replan_steps=5)


def metadata(**changes):
    return {**copy.deepcopy(fakes.METADATA), **changes}


def test_a_matching_server_is_accepted_with_its_shapes():
    agreed = check_contract(metadata(), NEEDS)
    assert agreed.noise_shape == (8, 4)
    assert agreed.action_width == 2
    assert agreed.deviations == ()
    assert agreed.reproducible


def robot(**changes):
    return metadata(robot={**fakes.METADATA["robot"], **changes})


@pytest.mark.parametrize(
    ("announced", "sentence"),
    [
        ({}, "announces no protocol.*stock openpi server"),
        (
            metadata(protocol={"name": "pi05-eval", "version": 2}),
            "protocol version 2, this client 1",
        ),
        ({k: v for k, v in metadata().items() if k != "checkpoint"}, "lacks checkpoint"),
        (robot(name="libero"), "robot 'libero', the simulator has 'point'"),
        (
            robot(state_layout=[["speed", 2]]),
            "state layout is speed:2, the simulator's is position:2",
        ),
        (robot(action_layout=[["velocity", 3]]), "action layout is velocity:3"),
        (robot(image_keys=["observation/image", "observation/right_image"]), "right_image"),
        (metadata(action_horizon=4), "replan-steps 5 must lie between 1 and .* 4"),
        (metadata(replan_steps=10), "replan_steps 5 instead of 10.*--args.allow-deviation"),
        (metadata(protocol_deviation=["norm_mode"]), "norm_mode.*--args.allow-deviation"),
        (
            metadata(
                determinism={"deterministic": False, "why": "autotuning is on", "xla_flags": ""}
            ),
            "autotuning is on.*--args.allow-nondeterministic",
        ),
    ],
)
def test_a_mismatch_is_refused_and_named(announced, sentence):
    with pytest.raises(ContractError, match=sentence):
        check_contract(announced, NEEDS)


def test_another_arm_than_expected_is_refused():
    with pytest.raises(ContractError, match=r"serves arm 'fake', --policy.arm expects 'base'"):
        check_contract(metadata(), dataclasses.replace(NEEDS, arm="base"))


def test_the_same_parts_in_another_order_are_refused():
    # the lab lost 0/160 to a base-first action layout
    needs = dataclasses.replace(NEEDS, action_layout=(("base", 4), ("gripper", 1)))
    announced = robot(action_layout=[["gripper", 1], ["base", 4]])
    with pytest.raises(
        ContractError, match="gripper:1 base:4, the simulator's is base:4 gripper:1"
    ):
        check_contract(announced, needs)


def test_a_server_in_the_order_of_robocasas_datasets_is_refused():
    base_first = [PANDA_OMRON_ACTION[i] for i in (3, 4, 0, 1, 2)]
    announced = robot(action_layout=[list(part) for part in base_first])
    needs = dataclasses.replace(NEEDS, action_layout=PANDA_OMRON_ACTION)
    with pytest.raises(
        ContractError, match=r"base_motion:4 control_mode:1 .*, the simulator's is end"
    ):
        check_contract(announced, needs)


def test_an_allowed_deviation_is_kept_as_a_mark():
    needs = dataclasses.replace(NEEDS, replan_steps=2, allow_deviation=True)
    agreed = check_contract(metadata(protocol_deviation=["norm_mode"]), needs)
    assert agreed.deviations == ("norm_mode", "replan_steps 2 instead of 5")


def test_an_allowed_nondeterministic_server_makes_the_run_not_reproducible():
    needs = dataclasses.replace(NEEDS, allow_nondeterministic=True)
    announced = metadata(determinism={"deterministic": False, "why": "x", "xla_flags": ""})
    assert not check_contract(announced, needs).reproducible
