"""Our conversions against what RoboCasa's own code gave; runs where RoboCasa is not installed.

The recordings hold placeholder assets' numbers (robocasa_record.py made them), which does not
matter here: names, order, shapes and types are RoboCasa's own.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from sim_client.envs import robocasa_contract
from sim_client.envs.robocasa import RobocasaEnv
from sim_client.errors import PolicyError, SimError
from sim_client.robots import PANDA_OMRON_ACTION

FOLDER = Path(__file__).with_name("data") / "robocasa_contract"
TASKS = sorted(path.stem for path in FOLDER.glob("*.json"))
MOMENTS = [(task, moment) for task in TASKS for moment in ("reset", "step")]


def recording(task):
    return json.loads((FOLDER / f"{task}.json").read_text())


def observation(moment):
    """The wrapper's observation; its images are not kept, only their shape."""
    return {
        key: np.array(each["value"], each["dtype"]) if "dtype" in each else each["value"]
        for key, each in moment["observation"].items()
        if "value" in each
    }


def poses(scene):
    return {
        name: (each["position"], each["rotation_wxyz"]) for name, each in scene["objects"].items()
    }


def scene_of(recorded):
    return robocasa_contract.describe_scene(recorded["ep_meta"], poses(recorded["scene"]))


def test_there_are_recordings_of_a_task_with_an_object_and_one_of_a_fixture():
    assert TASKS == ["PickPlaceCounterToCabinet", "TurnOnMicrowave"]


@pytest.mark.parametrize(("task", "moment"), MOMENTS)
def test_the_state_is_hand_then_base_then_gripper_as_robosuite_measures_them(task, moment):
    recorded = recording(task)[moment]
    raw = recorded["raw"]
    expected = [
        *raw["robot0_base_to_eef_pos"],
        *raw["robot0_base_to_eef_quat"],
        *raw["robot0_base_pos"],
        *raw["robot0_base_quat"],
        *raw["robot0_gripper_qpos"],
    ]
    state = robocasa_contract.state_from_observation(observation(recorded))
    assert (state.shape, state.dtype) == ((16,), np.float32)
    np.testing.assert_array_equal(state, np.array(expected, np.float32))


@pytest.mark.parametrize(("task", "moment"), MOMENTS)
def test_the_wrapper_has_the_cameras_and_keys_the_adapter_reads(task, moment):
    recorded = recording(task)[moment]
    seen = recorded["observation"]
    for camera in robocasa_contract.CAMERAS.values():
        assert seen[f"video.{camera}"] == {"dtype": "uint8", "shape": [256, 256, 3]}
    prompt = robocasa_contract.prompt_from_observation(observation(recorded))
    assert prompt == recording(task)["ep_meta"]["lang"] != ""
    assert recorded["info"] == {"success": "bool"}


@pytest.mark.parametrize("task", TASKS)
def test_the_wrapper_does_not_end_an_episode(task):
    assert recording(task)["step"]["ended"] == [False, False]
    assert recording(task)["horizon"] > 3


@pytest.mark.parametrize("task", TASKS)
def test_an_action_is_split_as_robocasa_splits_it(task):
    expected = recording(task)["convert_action"]
    parts = robocasa_contract.action_dict(np.arange(12.0))
    assert {name: part.tolist() for name, part in parts.items()} == expected


@pytest.mark.parametrize("task", TASKS)
def test_robosuite_takes_the_numbers_in_the_policys_order_and_only_the_switches_are_signs(task):
    recorded = recording(task)["controller_vector"]
    names = [name for name, width in PANDA_OMRON_ACTION for _ in range(width)]
    at_rest = [-1.0 if name in ("gripper_close", "control_mode") else 0.0 for name in names]
    assert recorded["none"] == at_rest
    for index, vector in enumerate(recorded["one_hot"]):
        expected = list(at_rest)
        expected[index] = 1.0
        assert vector == expected


@pytest.mark.parametrize("task", TASKS)
def test_a_scene_has_layout_style_sentence_and_base_of_the_environment(task):
    recorded = recording(task)
    scene = scene_of(recorded)
    assert json.loads(json.dumps(scene)) == scene
    assert (scene["layout"], scene["style"]) == (
        recorded["scene"]["layout"],
        recorded["scene"]["style"],
    )
    assert scene["lang"] == robocasa_contract.prompt_from_observation(
        observation(recorded["reset"])
    )
    assert scene["base_position_m"] == recorded["scene"]["base_position"]
    assert len(scene["base_rotation_euler_rad"]) == 3


@pytest.mark.parametrize("task", TASKS)
def test_a_scene_names_each_objects_model_and_its_pose(task):
    recorded = recording(task)["scene"]["objects"]
    objects = scene_of(recording(task))["objects"]
    assert set(objects) == set(recorded)
    for name, expected in recorded.items():
        assert f"assets/objects/{objects[name]['model']}" == expected["folder"]
        assert objects[name]["category"] == expected["folder"].split("/")[-2]
        assert objects[name]["position_m"] == expected["position"]
        assert objects[name]["rotation_wxyz"] == expected["rotation_wxyz"]


def test_the_object_of_a_pick_and_place_task_is_the_one_the_sentence_names():
    scene = scene_of(recording("PickPlaceCounterToCabinet"))
    assert scene["object"] == "soap_dispenser"
    assert scene["lang"] == "Pick the soap dispenser from the counter and place it in the cabinet."


def test_a_scene_without_a_target_object_says_none():
    recorded = recording("TurnOnMicrowave")
    recorded["ep_meta"]["object_cfgs"] = []
    assert scene_of(recorded)["object"] is None


def test_a_missing_state_part_is_refused_and_not_filled():
    seen = observation(recording(TASKS[0])["reset"])
    del seen["state.base_position"]
    with pytest.raises(SimError, match="base_position"):
        robocasa_contract.state_from_observation(seen)


def test_an_episode_without_a_sentence_is_refused():
    with pytest.raises(SimError, match="defines no language"):
        robocasa_contract.prompt_from_observation({robocasa_contract.PROMPT_KEY: ""})


@pytest.mark.parametrize("action", [np.zeros(7), np.full(12, np.nan)])
def test_an_action_that_is_no_action_is_refused(action):
    with pytest.raises(PolicyError):
        robocasa_contract.action_dict(action)


def test_the_adapter_announces_what_the_contract_check_reads_before_it_is_built():
    assert (RobocasaEnv.sim_name, RobocasaEnv.robot) == ("robocasa", "panda_omron")
    assert RobocasaEnv.image_keys == (
        "observation/image",
        "observation/wrist_image",
        "observation/right_image",
    )
    assert sum(width for _, width in RobocasaEnv.state_layout) == 16
    assert sum(width for _, width in RobocasaEnv.action_layout) == 12
