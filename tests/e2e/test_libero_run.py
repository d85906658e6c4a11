"""A short real LIBERO evaluation through the scripts, in LIBERO's own environment."""

import json
from pathlib import Path

import numpy as np
import pytest
from server_process import EVAL, REPO, demo_server, run_command

pytestmark = pytest.mark.libero

ARM = """
[arms.tiny_libero]
checkpoint = "demo"
params = "any"
model = "any"
norm_mode = "quantile"
norm_stats = "norm_stats.json"
action_horizon = 10
robot = "libero"
state_padding = "after_tokenization"
discrete_state_input = false
replan_steps = 5
tokenizer = "tokenizer.model"
"""


def stats(width: int) -> dict[str, list[float]]:
    """Stats that leave a signal as it is."""
    return {
        "mean": [0.0] * width,
        "std": [1.0] * width,
        "q01": [-1.0] * width,
        "q99": [1.0] * width,
    }


@pytest.fixture(scope="module")
def libero_port(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory):
    """The port of a server of a tiny arm for LIBERO's robot."""
    folder = tmp_path_factory.mktemp("arms")
    (folder / "arms.toml").write_text(ARM)
    content = {"norm_stats": {"state": stats(8), "actions": stats(7)}}
    (folder / "norm_stats.json").write_text(json.dumps(content))
    tokenizer = REPO / "norm_stats" / "demo" / "tokenizer.model"
    (folder / "tokenizer.model").write_bytes(tokenizer.read_bytes())
    flags = ("--policy.arms-file", str(folder / "arms.toml"), "--policy.arm", "tiny_libero")
    with demo_server(checkpoints, folder / "log", *flags) as port:
        yield port


def evaluate(port: int, out: Path, *flags: str):
    words = ("--args.port", str(port), "--args.sim", "libero", "--args.env_names",
             "libero_spatial/0", "--args.num_trials", "1", "--args.log_dir", str(out),
             "--args.max_steps", "12", "--args.allow-deviation", *flags)  # fmt: skip
    return run_command(EVAL, *words, timeout_s=900.0)


def test_a_libero_episode_is_run_recorded_and_the_same_again(libero_port, tmp_path):
    for name in ("a", "b"):
        done = evaluate(libero_port, tmp_path / name, "--args.env_seed_offset", "3")
        assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "a/episodes/libero_spatial_0/3.json").read_text())
    assert record["outcome"] in ("success", "timeout")
    assert "black bowl" in record["prompt"]
    with np.load(tmp_path / "a/trace_3.npz", allow_pickle=False) as trace:
        assert trace["state"].shape == (3, 8)
        assert trace["action"].shape == (12, 7)
    for name in ("outcomes.json", "trace_3.npz"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_installation_is_a_command_that_may_be_typed_again():
    done = run_command(EVAL, "install", "libero")
    assert done.returncode == 0, done.stderr
    assert (REPO / ".venv-libero" / "bin" / "python").exists()


def test_a_server_of_another_robot_is_refused(demo_port, tmp_path):
    done = evaluate(demo_port, tmp_path / "out")
    assert done.returncode == 2
    assert "robot 'panda_omron', the simulator has 'libero'" in done.stderr
