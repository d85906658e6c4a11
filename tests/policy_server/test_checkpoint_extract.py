"""The raw weights of a training step become a directory that can be served."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from training_step import ASSETS, RAW_DIGEST, LiveLeaves, tiny_weights, write_step

from golden_data import FULL
from policy_server import checkpoint_commands, checkpoint_extract
from policy_server.checkpoint_extract import extract_raw
from policy_server.checkpoints import checkpoint_digest, restore, restore_raw_leaves
from policy_server.config import CheckpointExtractRaw, parse_command
from policy_server.errors import CheckpointError
from policy_server.params_kind import MARKER_FILE, find_params_kind
from policy_server.plan import check_out

needs_whole_set = pytest.mark.skipif(not FULL.is_dir(), reason="the whole set is not here")


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """A step of a run that kept an average; its raw weights are those of seed 1."""
    return write_step(tmp_path, raw=tiny_weights(1))


@needs_whole_set
def test_the_raw_weights_of_openpis_own_step_are_extracted_not_the_average(tmp_path):
    found = extract_raw(FULL / "ckpt_dummy_ema" / "100", tmp_path / "out")
    extracted = restore(tmp_path / "out")
    # the same run without an average: its params are the raw weights
    raw = restore(FULL / "ckpt_dummy_noema" / "100")
    assert extracted.keys() == raw.keys()
    for path, leaf in raw.items():
        np.testing.assert_array_equal(extracted[path], leaf, strict=True)
    assert found == checkpoint_digest(FULL / "ckpt_dummy_noema" / "100")
    assert found != checkpoint_digest(FULL / "ckpt_dummy_ema" / "100")


@needs_whole_set
def test_openpis_step_without_an_average_has_nothing_to_extract(tmp_path):
    with pytest.raises(CheckpointError, match="holds no raw weights: the run kept no average"):
        extract_raw(FULL / "ckpt_dummy_noema" / "100", tmp_path / "out")


def test_the_command_prints_the_digest_of_the_raw_weights(step, tmp_path, capsys):
    out = tmp_path / "raw"
    command = parse_command(["checkpoint", "extract-raw", str(step), "--out", str(out)])
    assert isinstance(command, CheckpointExtractRaw)
    checkpoint_commands.run(command)
    assert capsys.readouterr().out == f"{out} digest {RAW_DIGEST}\n"
    assert checkpoint_digest(out) == RAW_DIGEST


def test_the_result_is_known_to_be_raw_and_where_it_comes_from(step, tmp_path):
    assert find_params_kind(step).kind == "ema"
    extract_raw(step, tmp_path / "raw")
    found = find_params_kind(tmp_path / "raw")
    assert (found.kind, found.marked_digest) == ("raw", RAW_DIGEST)
    assert str(step / "train_state") in found.why


def test_assets_come_along_as_files(step, tmp_path):
    extract_raw(step / "params", tmp_path / "raw")
    assert (tmp_path / "raw" / ASSETS).read_bytes() == (step / ASSETS).read_bytes()


def test_the_optimizers_state_is_not_read(step, tmp_path):
    moments = list((step / "train_state").glob("opt_state.*"))
    assert moments
    for array in moments:
        shutil.rmtree(array)
    assert extract_raw(step, tmp_path / "raw") == RAW_DIGEST


def test_one_leaf_is_in_memory_at_a_time(step, tmp_path, monkeypatch):
    live = LiveLeaves()
    read = restore_raw_leaves
    monkeypatch.setattr(
        checkpoint_extract, "restore_raw_leaves", lambda state: live.watch(read(state))
    )
    extract_raw(step, tmp_path / "raw")
    assert live.peak == 1


def test_a_run_without_an_average_is_one_sentence_and_leaves_nothing_behind(tmp_path):
    step = write_step(tmp_path, raw=None)
    with pytest.raises(CheckpointError, match="params beside it are the raw ones and can be ser"):
        extract_raw(step, tmp_path / "raw")
    assert not (tmp_path / "raw").exists()


def test_a_checkpoint_without_a_train_state_is_one_sentence(step, tmp_path):
    shutil.rmtree(step / "train_state")
    with pytest.raises(CheckpointError, match=r"100 has no train_state, .* of a training step"):
        extract_raw(step, tmp_path / "raw")


def test_a_damaged_train_state_leaves_no_checkpoint_behind(step, tmp_path):
    chunk = step / "train_state" / "params.time_mlp_out.kernel.value" / "0.0"
    chunk.write_bytes(chunk.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match=r"train_state cannot be read, a file .* damaged"):
        extract_raw(step, tmp_path / "raw")
    with pytest.raises(CheckpointError, match="holds no orbax checkpoint"):
        restore(tmp_path / "raw")


def test_nothing_is_extracted_over_something_else(step):
    with pytest.raises(CheckpointError, match="exists and is not empty"):
        check_out(CheckpointExtractRaw(dir=step, out=step))


def test_a_mark_beside_other_weights_is_refused(step, tmp_path):
    extract_raw(step, tmp_path / "raw")
    shutil.rmtree(tmp_path / "raw" / "params")
    shutil.copytree(step / "params", tmp_path / "raw" / "params")
    found = find_params_kind(tmp_path / "raw")
    with pytest.raises(CheckpointError, match=f"the mark beside them .* is that of {RAW_DIGEST}"):
        found.check_digest(checkpoint_digest(tmp_path / "raw"))


def test_a_mark_in_a_training_step_does_not_make_its_average_raw(step, tmp_path):
    extract_raw(step, tmp_path / "raw")
    shutil.copy(tmp_path / "raw" / MARKER_FILE, step)
    assert find_params_kind(step).kind == "ema"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"params": "raw"}', "cannot be read"),
        (json.dumps({"params": "any", "origin": "", "checkpoint_digest": ""}), "not one of extrac"),
    ],
)
def test_a_damaged_mark_is_an_error(tmp_path, text, said):
    (tmp_path / MARKER_FILE).write_text(text)
    with pytest.raises(CheckpointError, match=said):
        find_params_kind(tmp_path)
