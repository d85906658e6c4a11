"""RoboCasa's gym wrapper in our terms: its observation, its action and its episode metadata.

Nothing here imports RoboCasa. Source of all names: robocasa/wrappers/gym_wrapper.py,
PandaOmronKeyConverter, and environments/kitchen/kitchen.py, get_ep_meta (be22d659).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Float, Float32

from sim_client.errors import SimError
from sim_client.robots import PANDA_OMRON_ACTION, PANDA_OMRON_STATE, join_state, split_action

CAMERAS: Mapping[str, str] = MappingProxyType(  # request key -> camera, as RoboCasa's evaluator
    {
        "observation/image": "robot0_agentview_left",
        "observation/wrist_image": "robot0_eye_in_hand",
        "observation/right_image": "robot0_agentview_right",
    }
)
STATE_PREFIX = "state."
ACTION_PREFIX = "action."
PROMPT_KEY = "annotation.human.task_description"
TARGET_OBJECT = "obj"  # what RoboCasa's tasks call the object they are about


def state_from_observation(observation: Mapping[str, Any]) -> Float32[np.ndarray, " 16"]:
    """Put the wrapper's state parts, found by name, into the order the policy was trained with.

    Raises:
        SimError: A part is missing, unknown or of another shape.
    """
    parts = {
        key.removeprefix(STATE_PREFIX): value
        for key, value in observation.items()
        if key.startswith(STATE_PREFIX)
    }
    return join_state(parts, PANDA_OMRON_STATE)


def prompt_from_observation(observation: Mapping[str, Any]) -> str:
    """The task's sentence for this episode.

    Raises:
        SimError: The wrapper gave none.
    """
    prompt = observation.get(PROMPT_KEY)
    if not isinstance(prompt, str) or not prompt:
        raise SimError(
            f"RoboCasa's observation has {prompt!r} under {PROMPT_KEY!r} where the task's sentence "
            "was expected; the task defines no language."
        )
    return prompt


def action_dict(action: Float[np.ndarray, " d"]) -> dict[str, Float[np.ndarray, " _"]]:
    """Cut one flat action of 12 numbers into the wrapper's named parts.

    The wrapper itself turns gripper and mode into -1 or +1 at 0.5, and clips nothing.

    Raises:
        PolicyError: The action has another width or is not finite.
    """
    parts = split_action(action, PANDA_OMRON_ACTION)
    return {ACTION_PREFIX + name: part for name, part in parts.items()}


def describe_scene(
    ep_meta: Mapping[str, Any], poses: Mapping[str, tuple[Any, Any]]
) -> dict[str, Any]:
    """What an episode's scene holds, in plain JSON types.

    Args:
        ep_meta: The environment's `get_ep_meta()`.
        poses: Object name -> (position in m, rotation wxyz), in the world's frame.

    Returns:
        Layout and style; the sentence; the category of the object the task is about (None for
        tasks about a fixture); all objects with category, model and pose; the base's pose.
    """
    objects = {
        str(cfg["name"]): _describe_object(cfg, *poses[str(cfg["name"])])
        for cfg in ep_meta["object_cfgs"]
    }
    target = objects.get(TARGET_OBJECT)
    return {
        "layout": int(ep_meta["layout_id"]),
        "style": int(ep_meta["style_id"]),
        "lang": str(ep_meta["lang"]),
        "object": None if target is None else target["category"],
        "objects": objects,
        "base_position_m": _floats(ep_meta["init_robot_base_pos"]),
        "base_rotation_euler_rad": _floats(ep_meta["init_robot_base_ori"]),
    }


def _describe_object(cfg: Mapping[str, Any], position_m: Any, rotation_wxyz: Any) -> dict[str, Any]:
    return {
        "category": str(cfg["info"]["cat"]),
        "model": model_name(str(cfg["info"]["mjcf_path"])),
        "position_m": _floats(position_m),
        "rotation_wxyz": _floats(rotation_wxyz),
    }


def model_name(mjcf_path: str) -> str:
    """An object's model without the folder the assets are in: registry/category/instance."""
    _, _, below_objects = mjcf_path.replace("\\", "/").rpartition("/objects/")
    return below_objects.rpartition("/")[0]


def _floats(values: Any) -> list[float]:
    return [float(value) for value in values]
