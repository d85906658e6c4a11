"""An arm is a row of data; a bad row is told by file, arm, key and what is allowed."""

import ast
from pathlib import Path

import pytest

import policy_server
from policy_server.arms import Arm, get_arm, load_arms
from policy_server.config import REPOSITORY
from policy_server.errors import ConfigError

SHIPPED = REPOSITORY / "norm_stats" / "arms.toml"
ROW = """
[arms.mine]
checkpoint = "somewhere"
params = "any"
model = "any"
norm_mode = "zscore"
norm_stats = "mine/norm_stats.json"
action_horizon = 50
robot = "panda_omron"
state_padding = "after_tokenization"
discrete_state_input = true
"""


def load(tmp_path: Path, text: str) -> dict[str, Arm]:
    path = tmp_path / "arms.toml"
    path.write_text(text)
    return load_arms(path)


def test_a_row_becomes_an_arm_with_defaults_for_what_it_leaves_out(tmp_path):
    arm = load(tmp_path, ROW)["mine"]
    assert (arm.name, arm.checkpoint, arm.action_horizon) == ("mine", "somewhere", 50)
    assert (arm.action_dim, arm.max_token_len, arm.replan_steps, arm.sample_steps) == (
        32,
        200,
        5,
        10,
    )
    assert (arm.compute_dtype, arm.refused_assets, arm.norm_stats_sha256) == ("bfloat16", (), "")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('params = "any"', 'params = "mean"', r"\[arms.mine\] has params = 'mean', expected one of "
         "'raw', 'ema', 'any'"),
        ("action_horizon = 50", "action_horizon = 5.5", "= 5.5, expected an integer"),
        ("action_horizon = 50", "action_horizon = true", "= True, expected an integer"),
        ("action_horizon = 50", "action_horizon = 0", "action_horizon is 0, expected an int"),
        ("action_horizon = 50", "action_horizon = 4", r"replan_steps is 5, expected 1 to .*\(4\)"),
        ("action_horizon = 50", "", "lacks 'action_horizon', an integer"),
        ("discrete_state_input = true", "discrete_state_input = 1", "= 1, expected true or false"),
        ('robot = "panda_omron"', 'robot = "panda"', "'panda_omron', 'libero', 'droid', 'aloha'"),
        ('model = "any"', 'modle = "any"', "unknown key 'modle'; known: .*model"),
        ('model = "any"', 'model = "any"\nname = "x"', "unknown key 'name'"),
        ('model = "any"', 'model = "any"\ncameras = 2', "cameras is 2, expected 3"),
        ('model = "any"', 'model = "any"\nrefused_assets = "x"', "expected a list of strings"),
        ('model = "any"', 'model = "any"\nrefused_assets = [1]', "expected a list of strings"),
        ('model = "any"', 'model = "any"\ncheckpoint_digest = "ab"', "checkpoint_digest is 'ab'"),
    ],
)  # fmt: skip
def test_a_bad_row_is_refused_by_name(tmp_path, old, new, message):
    assert old in ROW
    with pytest.raises(ConfigError, match=message) as caught:
        load(tmp_path, ROW.replace(old, new))
    assert str(tmp_path / "arms.toml") in str(caught.value)
    assert "[arms.mine]" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[arms.mine", "is not TOML"),
        ("", "holds nothing"),
        (ROW + "[defaults]\nrobot = 'libero'", "holds arms, defaults"),
        ("[arms]\nmine = 3", "is 3, expected a table"),
    ],
)
def test_a_file_that_is_no_table_of_arms_is_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_a_missing_table_names_the_flag(tmp_path):
    with pytest.raises(ConfigError, match=r"--policy\.arms-file"):
        load_arms(tmp_path / "absent.toml")


def test_an_unknown_arm_names_the_nearest_one_and_all_the_others(tmp_path):
    arms = load(tmp_path, ROW + ROW.replace("arms.mine", "arms.yours"))
    with pytest.raises(ConfigError, match=r"'mien' .*did you mean 'mine'\?.*mine, yours"):
        get_arm("mien", arms, Path("arms.toml"))


def test_the_shipped_table_has_every_arm():
    assert set(load_arms(SHIPPED)) == {
        "base", "base_30k", "vace", "mimicgen", "pose6daug",
        "pi05_libero", "pi05_droid", "pi05_aloha", "demo", "demo_qnorm",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["base", "base_30k", "vace", "mimicgen", "pose6daug"])
def test_the_labs_arms_are_served_as_they_were_trained(name):
    arm = load_arms(SHIPPED)[name]
    assert (arm.params, arm.model, arm.robot) == ("raw", "pi05", "panda_omron")
    assert (arm.action_horizon, arm.action_dim, arm.max_token_len) == (50, 32, 200)
    assert (arm.replan_steps, arm.sample_steps, arm.compute_dtype) == (5, 10, "bfloat16")
    assert (arm.state_padding, arm.discrete_state_input) == ("before_normalization", True)
    assert arm.refused_assets == ("robocasa365_human300",)


def test_only_the_arms_of_the_base_checkpoint_use_zscore():
    arms = load_arms(SHIPPED)
    modes = {n: (arms[n].norm_mode, arms[n].norm_stats) for n in ("base", "base_30k", "vace")}
    assert modes == {
        "base": ("zscore", "ctc502/norm_stats.json"),
        "base_30k": ("zscore", "ctc502/norm_stats.json"),
        "vace": ("quantile", "ctc502_qnorm/norm_stats.json"),
    }


def test_no_code_knows_an_arms_name():
    names = set(load_arms(SHIPPED))
    sources = list(Path(policy_server.__path__[0]).rglob("*.py"))
    assert len(sources) > 5
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            literals = {c.value for c in compared if isinstance(c, ast.Constant)}
            assert not literals & names, source
