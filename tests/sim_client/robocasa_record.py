"""Records what RoboCasa's own code gives and takes, for the contract test that runs without it.

    .venv-robocasa/bin/python tests/sim_client/robocasa_record.py TASK...

Nothing of the adapter takes part but the import of RoboCasa: expected values are robosuite's raw
observables, RoboCasa's own split of a flat action, and the environment's attributes.
"""

import importlib
import json
import random
import sys
from pathlib import Path

import numpy as np

from sim_client.envs.robocasa_setup import load_robocasa, quiet, source_version

FOLDER = Path(__file__).with_name("data") / "robocasa_contract"
EP_ID = 0
RAW_STATE = (
    "robot0_base_to_eef_pos",
    "robot0_base_to_eef_quat",
    "robot0_base_pos",
    "robot0_base_quat",
    "robot0_gripper_qpos",
)


def plain(value):
    """As JSON types; arrays as nested lists."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, str):
        _, mark, below_assets = str(value).rpartition("/assets/")
        return f"assets/{below_assets}" if mark else str(value)  # no path of the machine
    return value


def entry(value):
    """An observation's value; of an image its shape."""
    if isinstance(value, str):
        return {"value": value}
    described = {"dtype": str(value.dtype), "shape": list(value.shape)}
    return described if value.ndim == 3 else {**described, "value": value.tolist()}


def record_moment(gym_env, observation, info):
    raw = gym_env.env._get_observations()
    return {
        "observation": {key: entry(value) for key, value in observation.items()},
        "info": {key: type(value).__name__ for key, value in info.items()},
        "raw": {key: raw[key].astype(float).tolist() for key in RAW_STATE},
    }


def record_controller_vectors(gym_env, convert_action):
    """What reaches robosuite for each number of a flat action alone, and for none."""
    vectors = []

    def capture(vector):
        vectors.append(vector.tolist())
        raise StopIteration

    original, gym_env.env.step = gym_env.env.step, capture
    for row in np.vstack([np.zeros(12), np.eye(12)]):
        try:
            gym_env.step(convert_action(row))
        except StopIteration:
            continue
    gym_env.env.step = original
    return {"none": vectors[0], "one_hot": vectors[1:]}


def record(task):
    env_utils = importlib.import_module("robocasa.utils.env_utils")
    gymnasium = importlib.import_module("gymnasium")
    registry = importlib.import_module("robocasa.utils.dataset_registry_utils")
    with quiet():
        gym_env = gymnasium.make(
            f"robocasa/{task}", disable_env_checker=True, split="target", seed=0
        ).unwrapped
        random.seed(EP_ID)
        np.random.seed(EP_ID)  # noqa: NPY002
        observation, info = gym_env.reset(seed=EP_ID)
    env = gym_env.env
    recorded = {
        "versions": {name: source_version(name) for name in ("robocasa", "robosuite")},
        "task": task,
        "ep_id": EP_ID,
        "horizon": registry.get_task_horizon(task),
        "reset": record_moment(gym_env, observation, info),
        "ep_meta": plain({k: v for k, v in env.get_ep_meta().items() if k != "fixtures"}),
        "scene": {
            "layout": int(env.layout_id),
            "style": int(env.style_id),
            "base_position": plain(env.init_robot_base_pos),
            "objects": {
                name: {
                    "position": plain(env.sim.data.get_body_xpos(model.root_body)),
                    "rotation_wxyz": plain(env.sim.data.get_body_xquat(model.root_body)),
                    "folder": plain(str(Path(model.file).parent)),
                }
                for name, model in env.objects.items()
            },
        },
        "convert_action": plain(env_utils.convert_action(np.arange(12.0))),
        "controller_vector": record_controller_vectors(gym_env, env_utils.convert_action),
    }
    action = np.array([0.3, -0.2, 0.5, 0.1, 0, -0.4, 1, 0.2, 0.1, -0.3, 0.4, 1.0])
    for _ in range(2):
        gym_env.step(env_utils.convert_action(action))
    observation, reward, *ended, info = gym_env.step(env_utils.convert_action(action))
    recorded["step"] = record_moment(gym_env, observation, info)
    recorded["step"]["reward"], recorded["step"]["ended"] = reward, ended
    FOLDER.mkdir(parents=True, exist_ok=True)
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in recorded.items()]
    (FOLDER / f"{task}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    gym_env.close()


if __name__ == "__main__":
    load_robocasa()
    for each in sys.argv[1:]:
        record(each)
