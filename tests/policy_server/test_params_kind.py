"""Raw or EMA weights: what the `train_state` beside `params` tells, and what arms refuse."""

import json
from pathlib import Path

import pytest
from served_arm import options
from test_plan import pinned

from golden_data import COMPACT, golden_roots
from policy_server.errors import CheckpointError
from policy_server.params_kind import find_params_kind
from policy_server.plan import make_plan


def write_train_state(step_dir: Path, *paths: tuple[str, ...]) -> Path:
    """A step directory whose `train_state` lists leaves as orbax does."""
    tree = {
        str(path): {"key_metadata": [{"key": key, "key_type": 2} for key in path]} for path in paths
    }
    (step_dir / "params").mkdir(parents=True)
    (step_dir / "train_state").mkdir()
    (step_dir / "train_state" / "_METADATA").write_text(json.dumps({"tree_metadata": tree}))
    return step_dir


def ema_step(folder: Path) -> Path:
    return write_train_state(folder / "ema", ("step",), ("params", "proj", "bias", "value"))


def raw_step(folder: Path) -> Path:
    return write_train_state(folder / "raw", ("step",), ("params",), ("opt_state", "0"))


def test_weights_in_the_train_state_mean_that_params_are_averaged(tmp_path):
    assert find_params_kind(ema_step(tmp_path)).kind == "ema"


def test_no_weights_in_the_train_state_mean_that_params_are_raw(tmp_path):
    assert find_params_kind(raw_step(tmp_path)).kind == "raw"


def test_without_a_train_state_nothing_is_known(tmp_path):
    assert find_params_kind(tmp_path).kind == "unknown"


def test_the_params_folder_itself_tells_the_same(tmp_path):
    assert find_params_kind(ema_step(tmp_path) / "params").kind == "ema"


@pytest.mark.parametrize(("name", "kind"), [("ckpt_dummy_ema", "ema"), ("ckpt_dummy_noema", "raw")])
@pytest.mark.parametrize("root", golden_roots(), ids=lambda root: root.parent.name)
def test_checkpoints_written_by_openpi_are_told_apart(root, name, kind):
    step = root / name / "100"
    if root == COMPACT and not step.is_dir():
        pytest.skip(f"not in this selection: {name}")
    assert find_params_kind(step).kind == kind


@pytest.mark.parametrize("text", ["{", "[]", '{"tree_metadata": {"a": {"key_metadata": 3}}}'])
def test_a_damaged_train_state_is_an_error(tmp_path, text):
    step = ema_step(tmp_path)
    (step / "train_state" / "_METADATA").write_text(text)
    with pytest.raises(CheckpointError, match="unknown whether the checkpoint holds raw or EMA"):
        find_params_kind(step)


def test_an_arm_of_raw_weights_refuses_averaged_ones_and_names_the_remedy(tmp_path):
    table = pinned(tmp_path, checkpoint=str(ema_step(tmp_path)))
    with pytest.raises(CheckpointError, match=r"holds ema weights .*raw weights; .*extract-raw"):
        make_plan(options(table))


def test_an_arm_of_averaged_weights_refuses_raw_ones(tmp_path):
    table = pinned(tmp_path, params="ema", checkpoint=str(raw_step(tmp_path)))
    with pytest.raises(CheckpointError, match=r"holds raw weights .*kept no average"):
        make_plan(options(table))


@pytest.mark.parametrize("step", [raw_step, ema_step])
def test_an_arm_of_any_weights_takes_both_and_says_which(tmp_path, step):
    table = pinned(tmp_path, params="any", checkpoint=str(step(tmp_path)))
    assert make_plan(options(table)).params_kind == step.__name__.removesuffix("_step")
