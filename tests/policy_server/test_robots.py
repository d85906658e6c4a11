"""The robots' tables."""

import pytest
from openpi_client import msgpack_numpy

from policy_server.robots import IMAGE_SLOTS, ROBOTS, RobotSpec


@pytest.fixture(params=ROBOTS.values(), ids=list(ROBOTS))
def robot(request: pytest.FixtureRequest) -> RobotSpec:
    return request.param


@pytest.mark.parametrize(
    ("name", "state_width", "action_width"),
    [("panda_omron", 16, 12), ("libero", 8, 7), ("droid", 8, 8), ("aloha", 14, 14)],
)
def test_layouts_have_the_widths_of_the_trained_policies(
    name: str, state_width: int, action_width: int
):
    assert ROBOTS[name].state_width == state_width
    assert ROBOTS[name].action_width == action_width


def test_each_camera_has_a_slot_of_the_model_for_itself(robot: RobotSpec):
    slots = [camera.slot for camera in robot.cameras]
    assert set(slots) <= set(IMAGE_SLOTS)
    assert len(set(slots)) == len(slots)


def test_relative_dimensions_are_told_for_every_number_of_state_and_action(robot: RobotSpec):
    if robot.delta_mask is not None:
        assert len(robot.delta_mask) == robot.state_width == robot.action_width


def test_the_description_survives_the_wire(robot: RobotSpec):
    description = robot.describe()
    assert msgpack_numpy.unpackb(msgpack_numpy.packb(description)) == description


def test_the_description_of_panda_omron_is_what_a_client_compares():
    description = ROBOTS["panda_omron"].describe()

    assert description["name"] == "panda_omron"
    assert description["image_keys"] == [
        "observation/image",
        "observation/wrist_image",
        "observation/right_image",
    ]
    assert description["state_layout"] == [
        ["end_effector_position_relative", 3],
        ["end_effector_rotation_relative", 4],
        ["base_position", 3],
        ["base_rotation", 4],
        ["gripper_qpos", 2],
    ]
    assert description["action_layout"] == [
        ["end_effector_position", 3],
        ["end_effector_rotation", 3],
        ["gripper_close", 1],
        ["base_motion", 4],
        ["control_mode", 1],
    ]


def test_images_in_a_map_are_described_with_its_name():
    description = ROBOTS["aloha"].describe()
    assert description["image_keys"] == [
        "images/cam_high",
        "images/cam_left_wrist",
        "images/cam_right_wrist",
    ]
    assert description["optional_image_keys"] == description["image_keys"][1:]
