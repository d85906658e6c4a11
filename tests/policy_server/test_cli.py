"""The command as a user runs it: a mistake is one sentence and exit code 2, never a traceback."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from policy_serving import JOIN_TIMEOUT_S
from served_arm import CHECKPOINT, options, write_arms

from policy_server.arms import load_arms
from policy_server.checkpoint_write import init_checkpoint
from policy_server.checkpoints import digest, restore
from policy_server.checks import check_arm
from policy_server.config import ARMS_FILE, PolicyOptions
from policy_server.model.config import TINY
from policy_server.server import bind


def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "policy_server", *words],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=4 * JOIN_TIMEOUT_S,
        check=False,
    )


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one sentence of a refusal."""
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    return line


@pytest.fixture
def table(tmp_path) -> str:
    return str(write_arms(tmp_path))


def serve(table: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    arm = () if "--policy.arm" in words else ("--policy.arm", "mine")
    return run(*arm, "--policy.arms-file", table, *words, **environ)


def test_an_unknown_arm_names_the_nearest(table):
    line = refused(serve(table, "--policy.arm", "mien"))
    assert re.match(r"policy-server: --policy\.arm 'mien' .*did you mean 'mine'", line)


def test_a_missing_checkpoint_names_the_directory_and_the_flag(table, tmp_path):
    absent = str(tmp_path / "absent")
    line = refused(serve(table, "--policy.dir", absent))
    assert absent in line
    assert "--policy.dir" in line


def test_a_folder_that_is_no_checkpoint_is_one_sentence(table, tmp_path):
    assert "holds no orbax checkpoint" in refused(serve(table, "--policy.dir", str(tmp_path)))


def test_a_wrong_tokenizer_path_names_the_flag(table):
    line = refused(serve(table, "--policy.tokenizer", "/no/such/tokenizer.model"))
    assert "/no/such/tokenizer.model" in line
    assert "--policy.tokenizer" in line


def test_a_port_in_use_is_refused_before_the_weights_are_read(table, tmp_path):
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        port = str(listener.getsockname()[1])
        # an empty folder is refused too, but only when the weights are looked for
        line = refused(serve(table, "--port", port, "--policy.dir", str(tmp_path)))
    assert f"cannot listen on 127.0.0.1:{port}" in line
    assert "--port" in line


def test_flags_for_xla_that_cannot_be_read_are_one_sentence(table):
    assert "XLA_FLAGS is 'nonsense'" in refused(serve(table, XLA_FLAGS="nonsense"))


def test_check_accepts_what_can_be_served(table):
    accepted = run("check", "--policy.arm", "mine", "--policy.arms-file", table)
    assert (accepted.returncode, accepted.stderr) == (0, "")
    verdicts = {line.split()[1]: line.split()[0] for line in accepted.stdout.splitlines()}
    subjects = ("arm", "checkpoint", "norm", "protocol", "pins", "weights", "tokenizer")
    assert verdicts == dict.fromkeys((*subjects, "request", "model", "digest"), "PASS")
    assert str(CHECKPOINT) in accepted.stdout


def test_check_says_of_every_line_what_a_start_would_refuse(tmp_path):
    table = write_arms(tmp_path, checkpoint_digest="0" * 64)
    verdicts = {line.subject: line for line in check_arm(options(table))}
    assert verdicts["digest"].verdict == "FAIL"
    assert "pinned to 0000" in verdicts["digest"].detail
    assert {v.verdict for v in verdicts.values() if v.subject != "digest"} == {"PASS"}


def test_check_looks_further_after_the_first_refusal(tmp_path):
    table = write_arms(tmp_path, norm_stats="gone.json", checkpoint="nowhere")
    done = run("check", "--policy.arm", "mine", "--policy.arms-file", str(table))
    assert done.returncode == 3
    assert [line.split()[0] for line in done.stdout.splitlines()[:3]] == ["PASS", "FAIL", "FAIL"]
    assert "gone.json" in done.stdout
    assert "nowhere" in done.stdout


@pytest.mark.parametrize("arm", list(load_arms(ARMS_FILE)))
def test_check_of_every_shipped_arm_is_a_table(arm):
    verdicts = check_arm(PolicyOptions(arm=arm, checkpoints_root=Path("/no/such/checkpoints")))
    assert verdicts[0].verdict == "PASS"
    assert {v.subject for v in verdicts} >= {"arm", "checkpoint", "norm stats", "pins", "model"}
    assert "FAIL" in {v.verdict for v in verdicts}  # their checkpoints are not shipped


def test_init_writes_the_checkpoint_of_its_seed_and_inspect_reads_it(tmp_path):
    out = str(tmp_path / "a")
    done = run("checkpoint", "init", "--config", "tiny", "--out", out, "--seed", "3")
    assert done.returncode == 0, done.stderr
    init_checkpoint(TINY, tmp_path / "b", seed=3)
    leaves = restore(tmp_path / "b")
    assert done.stdout == f"{out} digest {digest(leaves)}\n"

    lines = run("checkpoint", "inspect", out).stdout.splitlines()
    assert len(lines) == len(leaves) + 4
    assert "action_in_proj/bias bfloat16 64" in lines
    n_parameters = sum(int(np.prod(leaf.shape)) for leaf in leaves.values())
    assert lines[-2:] == [
        f"51 leaves, {n_parameters} parameters, bfloat16",
        f"digest {digest(leaves)}",
    ]


@pytest.mark.parametrize("occupied", ["file", "folder"])
def test_init_never_writes_into_something_that_is_there(tmp_path, occupied):
    (tmp_path / "folder").mkdir()
    for file in (tmp_path / "file", tmp_path / "folder" / "mine"):
        file.write_text("precious")
    out = Path(tmp_path / occupied)
    line = refused(run("checkpoint", "init", "--config", "tiny", "--seed", "0", "--out", str(out)))
    assert f"--out {out} exists and is not empty" in line
    assert {path.name for path in tmp_path.rglob("*")} == {"file", "folder", "mine"}
