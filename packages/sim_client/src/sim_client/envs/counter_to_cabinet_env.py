"""CounterToCabinet for robosuite 1.5.2; importing this module registers it with robosuite's make.

It says what RoboCasa's PickPlaceCounterToCabinet says, with objects that the wheel holds and a
cabinet of our own. Import it through `RobosuiteEnv` only, which prepares the process first.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Float64
from robosuite.environments.manipulation.manipulation_env import ManipulationEnv
from robosuite.models import objects
from robosuite.models.arenas import TableArena
from robosuite.models.objects import MujocoXMLObject
from robosuite.models.tasks import ManipulationTask

from sim_client.envs.counter_to_cabinet import (
    COUNTER_SIZE_M,
    COUNTER_TOP_Z_M,
    OBJECTS,
    Placement,
    all_inside,
    cabinet_body,
    draw_scene,
)

GRIPPER_FAR_M = 0.25  # RoboCasa's gripper_obj_far, robocasa/utils/object_utils.py (be22d659)
LIFTED_M = 0.04
START_GAP_M = 0.001  # objects start this far above the counter


class CounterToCabinet(ManipulationEnv):
    """Pick one object from the counter and place it in the open cabinet at the counter's back."""

    sim: Any  # robosuite's type is that of its first moment, None

    def __init__(self, *, use_object_obs: bool = False, **kwargs: Any) -> None:
        """Build the scene of the generator's present state.

        Args:
            use_object_obs: As every robosuite task takes it; this one has no object observables.
            **kwargs: robosuite's own, as for its Lift.
        """
        del use_object_obs
        super().__init__(initialization_noise="default", **kwargs)

    @property
    def target(self) -> MujocoXMLObject:
        """The object to be placed in the cabinet."""
        return self._objects[0]

    def reward(self, action: object = None) -> float:
        """1 at success, else 0."""
        del action
        return float(self._check_success())

    def task_stages(self) -> dict[str, bool]:
        """Whether the target is 4 cm above where it started, and whether all of it is inside."""
        return {
            "lifted": bool(self._target_position()[2] > self._start_z_m + LIFTED_M),
            "in_cabinet": self._target_inside(),
        }

    def task_scene(self) -> dict[str, Any]:
        """The distractors' initial poses and the cabinet's interior, in plain JSON types."""
        return {
            "half_size_m": (np.ptp(self._points_m[0], axis=0) / 2).tolist(),
            "distractors": [
                {
                    "name": each.name,
                    "position_m": self.sim.data.get_body_xpos(each.root_body).tolist(),
                    "rotation_wxyz": self.sim.data.get_body_xquat(each.root_body).tolist(),
                }
                for each in self._objects[1:]
            ],
            "cabinet_interior_center_m": list(self._scene.interior_center_m),
        }

    def _load_model(self) -> None:
        super()._load_model()
        self._scene = draw_scene(self.rng)
        robot_model = self.robots[0].robot_model
        robot_model.set_base_xpos(robot_model.base_xpos_offset["table"](COUNTER_SIZE_M[0]))
        arena = TableArena(
            table_full_size=COUNTER_SIZE_M, table_offset=np.array([0, 0, COUNTER_TOP_Z_M])
        )
        arena.set_origin([0, 0, 0])
        arena.worldbody.append(cabinet_body(self._scene.interior_center_m))
        self._objects = [
            getattr(objects, OBJECTS[each.name])(each.name) for each in self._scene.placements
        ]
        self.model = ManipulationTask(
            mujoco_arena=arena, mujoco_robots=[robot_model], mujoco_objects=self._objects
        )

    def _setup_references(self) -> None:
        super()._setup_references()
        self._points_m = [self._surface_points(each) for each in self._objects]

    def _reset_internal(self) -> None:
        super()._reset_internal()
        starts = zip(self._objects, self._scene.placements, self._points_m, strict=True)
        for each, placement, points_m in starts:
            self.sim.data.set_joint_qpos(each.joints[0], _upright_pose(placement, points_m))
        self._start_z_m = float(self.sim.data.get_joint_qpos(self.target.joints[0])[2])

    def _check_success(self) -> bool:
        """All of the target inside and the gripper farther than 0.25 m from it."""
        grip_site = self.robots[0].eef_site_id["right"]
        gap_m = self.sim.data.site_xpos[grip_site] - self._target_position()
        return self._target_inside() and bool(np.linalg.norm(gap_m) > GRIPPER_FAR_M)

    def _target_position(self) -> Float64[np.ndarray, " 3"]:
        return self.sim.data.get_body_xpos(self.target.root_body)

    def _target_inside(self) -> bool:
        rotation = self.sim.data.get_body_xmat(self.target.root_body)
        points_m = self._points_m[0] @ rotation.T + self._target_position()
        return all_inside(points_m, self._scene.interior_center_m)

    def _surface_points(self, each: MujocoXMLObject) -> Float[np.ndarray, "n 3"]:
        """The vertices (m) of the object's collision meshes in its root body's frame."""
        model, data = self.sim.model._model, self.sim.data
        root_m = data.get_body_xpos(each.root_body)
        root_rotation = data.get_body_xmat(each.root_body)
        points = []
        for name in each.contact_geoms:
            geom = self.sim.model.geom_name2id(name)
            mesh = model.geom_dataid[geom]
            first, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
            vertices_m = model.mesh_vert[first : first + count].astype(np.float64)
            world_m = vertices_m @ data.get_geom_xmat(name).T + data.get_geom_xpos(name)
            points.append((world_m - root_m) @ root_rotation)
        return np.concatenate(points)


def _upright_pose(
    placement: Placement, points_m: Float[np.ndarray, "n 3"]
) -> Float64[np.ndarray, " 7"]:
    """Position (m) and wxyz rotation of a free joint that stands the object on the counter."""
    z_m = COUNTER_TOP_Z_M + START_GAP_M - points_m[:, 2].min()
    half_yaw = placement.yaw_rad / 2
    return np.array([*placement.xy_m, z_m, np.cos(half_yaw), 0.0, 0.0, np.sin(half_yaw)])
