import numpy as np
import pytest

from sim_client.envs.counter_to_cabinet import (
    COUNTER_SIZE_M,
    INTERIOR_HALF_M,
    OBJECTS,
    all_inside,
    cabinet_body,
    draw_scene,
)

CENTER_M = (0.2, 0.0, 1.03)


def scenes(n):
    return [draw_scene(np.random.default_rng(seed)) for seed in range(n)]


def test_a_scene_is_a_function_of_the_seed():
    assert scenes(5) == scenes(5)


def test_every_object_becomes_the_target_and_has_none_to_two_distractors():
    drawn = scenes(100)
    assert {scene.placements[0].name for scene in drawn} == set(OBJECTS)
    assert {len(scene.placements) for scene in drawn} == {1, 2, 3}
    assert all(len({each.name for each in s.placements}) == len(s.placements) for s in drawn)


def test_objects_leave_room_for_a_gripper_between_them_and_before_the_cabinet():
    for scene in scenes(200):
        places = np.array([each.xy_m for each in scene.placements])
        gaps = np.linalg.norm(places[:, None] - places[None], axis=-1)
        assert (gaps[~np.eye(len(places), dtype=bool)] > 0.12).all()
        front_x = scene.interior_center_m[0] - INTERIOR_HALF_M[0]
        assert (front_x - places[:, 0] > 0.1).all()


def test_targets_and_cabinets_stand_in_different_places():
    drawn = scenes(20)
    assert len({scene.placements[0].xy_m for scene in drawn}) == 20
    assert len({scene.placements[0].yaw_rad for scene in drawn}) == 20
    assert len({scene.interior_center_m for scene in drawn}) == 20


def test_the_whole_cabinet_stands_on_the_counter_and_only_the_robots_side_is_open():
    for scene in scenes(50):
        spans = {}
        for geom in cabinet_body(scene.interior_center_m).iter("geom"):
            center, half = (np.array(geom.attrib[key].split(), float) for key in ("pos", "size"))
            spans[geom.attrib["name"]] = (center - half, center + half)
        low = np.min([span[0] for span in spans.values()], axis=0) + scene.interior_center_m
        high = np.max([span[1] for span in spans.values()], axis=0) + scene.interior_center_m
        np.testing.assert_allclose(low[2], 0.8)
        assert (np.abs([low[:2], high[:2]]) < np.array(COUNTER_SIZE_M[:2]) / 2).all()
        sides = ("back", "ceiling", "floor", "left", "right")
        assert sorted(spans) == [f"cabinet_{side}" for side in sides]
        assert all(span[1][0] > 0 for span in spans.values()), "no board closes the front"


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_point_outside_any_side_of_the_interior_is_enough_to_be_outside(axis, side):
    points = np.array([[-0.03, -0.03, -0.03], [0.0, 0.0, 0.0], [0.03, 0.03, 0.03]]) + CENTER_M
    to_the_wall = np.zeros(3)
    to_the_wall[axis] = side * (INTERIOR_HALF_M[axis] - 0.03)
    assert all_inside(points + to_the_wall, CENTER_M)
    assert not all_inside(points + to_the_wall * 1.1, CENTER_M)
