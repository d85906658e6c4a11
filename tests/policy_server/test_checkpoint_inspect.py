"""What a directory holds, and checkpoints that are never served."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from served_arm import CHECKPOINT, options, write_arms
from training_step import AVERAGE_DIGEST, RAW_DIGEST, tiny_weights, write_step

from policy_server import checkpoint_commands
from policy_server.checkpoint_extract import extract_raw
from policy_server.checkpoint_write import random_params, write_params
from policy_server.checkpoints import checkpoint_digest
from policy_server.checks import check_arm
from policy_server.config import CheckpointInspect, parse_command
from policy_server.errors import CheckpointError
from policy_server.model.config import PI05, TINY
from policy_server.model.pi05 import param_shapes
from policy_server.params_kind import MARKER_FILE
from policy_server.plan import make_plan
from policy_server.policy import load_policy


@pytest.fixture
def inspect(capsys):
    def inspect(directory: Path) -> list[str]:
        command = parse_command(["checkpoint", "inspect", str(directory)])
        assert isinstance(command, CheckpointInspect)
        checkpoint_commands.run(command)
        return capsys.readouterr().out.splitlines()

    return inspect


def pi0_weights() -> dict[str, np.ndarray]:
    """Leaves that tell pi0 from pi0.5: openpi src/openpi/models/pi0.py (15a9616)."""
    weights = tiny_weights(0)
    weights["state_proj/kernel"] = weights.pop("time_mlp_in/kernel")
    weights["action_time_mlp_in/kernel"] = weights.pop("time_mlp_out/kernel")
    return weights


def lora_weights() -> dict[str, np.ndarray]:
    adapters = {
        f"PaliGemma/llm/layers/mlp/linear_lora_{side}": np.zeros((4, 8, 8), np.float32)
        for side in "ab"
    }
    return {**tiny_weights(0), **adapters}


OTHERS = {"pi0": (pi0_weights, "holds a pi0 checkpoint"), "lora": (lora_weights, "2 LoRA leaves")}


def test_a_checkpoint_is_described_by_leaves_model_parameters_and_digest(inspect):
    *leaves, weights, model, count, digest = inspect(CHECKPOINT)
    assert len(leaves) == 51
    assert "action_in_proj/bias bfloat16 64" in leaves
    assert weights.startswith("weights: unknown, there is neither a train_state beside params nor")
    assert model.startswith("model: pi0.5, tiny, vision 48 wide and 3 deep, ")
    assert count == "51 leaves, 701216 parameters, bfloat16"
    assert digest == f"digest {checkpoint_digest(CHECKPOINT)}"


def test_the_average_of_a_training_step_is_told_by_its_train_state(inspect, tmp_path):
    lines = inspect(write_step(tmp_path, raw=tiny_weights(1)))
    assert lines[-4].startswith("weights: ema, train_state beside params holds the raw weights")
    assert lines[-1] == f"digest {AVERAGE_DIGEST}"


def test_the_raw_weights_of_a_training_step_are_told_by_its_train_state(inspect, tmp_path):
    lines = inspect(write_step(tmp_path, raw=None))
    assert lines[-4] == (
        "weights: raw, train_state beside params holds no weights, so no average was kept"
    )


def test_extracted_weights_are_told_by_their_mark(inspect, tmp_path):
    step = write_step(tmp_path, raw=tiny_weights(1))
    extract_raw(step, tmp_path / "raw")
    lines = inspect(tmp_path / "raw")
    assert lines[-4] == f"weights: raw, extracted from {step / 'train_state'}"
    assert lines[-1] == f"digest {RAW_DIGEST}"


@pytest.mark.parametrize("model", OTHERS)
def test_another_model_is_described_with_the_reason_why_it_is_not_served(inspect, tmp_path, model):
    weights, reason = OTHERS[model]
    write_params(tmp_path / model, weights().items())
    lines = inspect(tmp_path / model)
    assert lines[-3].startswith("model: none that can be served, since ")
    assert reason in lines[-3]
    marked = [line for line in lines if line.endswith(" LoRA adapter")]
    assert len(marked) == (2 if model == "lora" else 0)


@pytest.mark.parametrize("sizes", ["any", "pi05"])
@pytest.mark.parametrize("model", OTHERS)
def test_another_model_is_refused_by_its_name(tmp_path, model, sizes):
    weights, reason = OTHERS[model]
    write_params(tmp_path / model, weights().items())
    table = write_arms(tmp_path, model=sizes, checkpoint=str(tmp_path / model))
    verdicts = {line.subject: line for line in check_arm(options(table))}
    assert verdicts["model"].verdict == "FAIL"
    assert reason in verdicts["model"].detail


def test_a_cut_checkpoint_is_refused_before_anything_is_served(tmp_path):
    copy = tmp_path / "cut"
    shutil.copytree(CHECKPOINT, copy, copy_function=shutil.copyfile)
    data = max((copy / "params").rglob("*"), key=lambda file: file.stat().st_size)
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    plan = make_plan(options(write_arms(tmp_path, checkpoint=str(copy))))
    with pytest.raises(CheckpointError, match=r"cut/params cannot be read.*copy the checkpoint ag"):
        load_policy(plan, None)


def test_a_mark_of_other_weights_is_refused_before_anything_is_served(tmp_path):
    extract_raw(write_step(tmp_path, raw=tiny_weights(1)), tmp_path / "raw")
    other = tmp_path / "other"
    write_params(other, random_params(TINY, seed=2))
    shutil.copy(tmp_path / "raw" / MARKER_FILE, other)
    plan = make_plan(options(write_arms(tmp_path, checkpoint=str(other))))
    with pytest.raises(CheckpointError, match=f"is that of {RAW_DIGEST}"):
        load_policy(plan, None)


def test_the_full_model_has_the_sizes_that_openpi_has():
    # openpi src/openpi/models/pi0_config.py (15a9616): gemma_2b, gemma_300m, So400m/14
    shapes = param_shapes(PI05)
    assert len(shapes) == 51
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 3_353_433_872
    assert dataclasses.asdict(PI05.expert)["width"] == 1024
