"""The command line gives whole, frozen options; without a command it serves."""

from pathlib import Path

import pytest

from policy_server.config import (
    REPOSITORY,
    Check,
    CheckpointInit,
    CheckpointInspect,
    CompareSelfcheck,
    Serve,
    Tune,
    parse_command,
)


@pytest.mark.parametrize("words", [["serve"], []])
def test_the_command_serve_may_be_left_out(words):
    command = parse_command([*words, "--policy.arm", "demo"])
    assert isinstance(command, Serve)
    assert (command.host, command.port, command.policy.arm) == ("127.0.0.1", 8000, "demo")


def test_defaults_refuse_nothing_and_deviate_in_nothing():
    command = parse_command(["--policy.arm", "demo"])
    assert isinstance(command, Serve)
    policy = command.policy
    assert policy.arms_file == REPOSITORY / "norm_stats" / "arms.toml"
    assert policy.arms_file.is_file()
    assert (policy.dir, policy.tokenizer, policy.weights, policy.seed) == (None, None, None, 0)
    assert (policy.norm_stats, policy.norm_mode, policy.action_horizon) == (None, None, None)
    assert not policy.require_noise
    assert not command.insecure
    assert (policy.autotune, command.api_key_file) == (None, None)
    assert not policy.allow_protocol_deviation


def test_every_flag_reaches_its_option():
    values = {
        "--policy.arm": "a",
        "--policy.arms-file": "t.toml",
        "--policy.dir": "d",
        "--policy.checkpoints-root": "r",
        "--policy.tokenizer": "k",
        "--policy.weights": "bf16",
        "--policy.norm-stats": "s",
        "--policy.norm-mode": "zscore",
        "--policy.action-horizon": "7",
        "--policy.seed": "9",
        "--policy.autotune": "f.pb",
        "--api-key-file": "key",
        "--tls-cert": "c.pem",
        "--tls-key": "k.pem",
        "--host": "0.0.0.0",
        "--port": "0",
    }
    switches = ["--policy.require-noise", "--policy.allow-protocol-deviation", "--insecure"]
    command = parse_command([*(word for pair in values.items() for word in pair), *switches])
    assert isinstance(command, Serve)
    assert (command.host, command.port) == ("0.0.0.0", 0)
    policy = command.policy
    assert (policy.arms_file, policy.dir) == (Path("t.toml"), Path("d"))
    assert (policy.checkpoints_root, policy.tokenizer) == (Path("r"), Path("k"))
    assert (policy.weights, policy.norm_stats, policy.norm_mode) == ("bf16", Path("s"), "zscore")
    assert (policy.action_horizon, policy.seed) == (7, 9)
    assert (policy.autotune, command.api_key_file) == (Path("f.pb"), Path("key"))
    assert (command.tls_cert, command.tls_key) == (Path("c.pem"), Path("k.pem"))
    assert command.insecure
    assert policy.require_noise
    assert policy.allow_protocol_deviation


def test_the_checkpoints_root_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("PI05_CHECKPOINTS", "/data/checkpoints")
    command = parse_command(["check", "--policy.arm", "demo"])
    assert isinstance(command, Check)
    assert command.policy.checkpoints_root == Path("/data/checkpoints")


def test_the_commands_about_determinism_are_read():
    compared = parse_command(["selfcheck", "--policy.arm", "demo", "--against", "h:1"])
    assert isinstance(compared, CompareSelfcheck)
    assert (compared.policy.arm, compared.against) == ("demo", "h:1")
    tuned = parse_command(["tune", "--policy.arm", "demo", "--out", "f.pb"])
    assert isinstance(tuned, Tune)
    assert tuned.out == Path("f.pb")


def test_checkpoint_commands_are_read():
    written = parse_command(["checkpoint", "init", "--config", "tiny", "--out", "o", "--seed", "3"])
    assert written == CheckpointInit(config="tiny", out=Path("o"), seed=3, dtype="bfloat16")
    assert parse_command(["checkpoint", "inspect", "d"]) == CheckpointInspect(dir=Path("d"))


@pytest.mark.parametrize(
    "words", [["--policy.arm", "demo", "--policy.batch", "4"], ["--policy.weights", "f64"], []]
)
def test_a_command_line_that_says_nothing_possible_exits_with_2(words, capsys):
    with pytest.raises(SystemExit) as caught:
        parse_command(words)
    assert caught.value.code == 2
    assert capsys.readouterr().err
