"""`checkpoint pin`: what the user vouches for becomes part of the arm's row, and nothing else."""

import io
from pathlib import Path

import pytest
from served_arm import CHECKPOINT, options, write_arms
from test_plan import pinned
from training_step import AVERAGE_DIGEST, RAW_DIGEST, tiny_weights, write_step

from policy_server import checkpoint_commands
from policy_server.arms import load_arms
from policy_server.checkpoint_extract import extract_raw
from policy_server.checkpoint_write import write_params
from policy_server.checkpoints import checkpoint_digest
from policy_server.config import CheckpointPin, parse_command
from policy_server.errors import CheckpointError, ConfigError
from policy_server.plan import make_plan
from policy_server.policy import load_policy


class Terminal(io.StringIO):
    """An input that a person types into."""

    def isatty(self) -> bool:
        return True


def pin(table: Path, *words: str, params: str = "raw") -> None:
    """Type the command."""
    flags = ["--arm", "mine", "--params", params, "--arms-file", str(table), *words]
    command = parse_command(["checkpoint", "pin", *flags])
    assert isinstance(command, CheckpointPin)
    checkpoint_commands.run(command)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A row of real weights without a checkpoint's digest."""
    return pinned(tmp_path, checkpoint_digest="")


def test_two_lines_of_the_row_change_and_the_arm_can_be_served(table, capsys):
    before = table.read_text()
    with pytest.raises(ConfigError, match="unpinned"):
        make_plan(options(table))
    pin(table, "--yes")
    digest = checkpoint_digest(CHECKPOINT)
    assert table.read_text() == before.replace(
        'checkpoint_digest = ""', f'checkpoint_digest = "{digest}"'
    )
    assert f"raw weights with digest {digest} in {table}" in capsys.readouterr().out
    plan = make_plan(options(table))
    assert plan.params_kind == "raw"
    assert load_policy(plan, None).checkpoint_digest == digest


def test_the_commands_that_pin_are_named_where_an_arm_is_refused(tmp_path):
    with pytest.raises(ConfigError) as caught:
        make_plan(options(pinned(tmp_path, norm_stats_sha256="", checkpoint_digest="")))
    for command in (
        "`policy-server norm-stats import --arm mine --from FILE`",
        "`policy-server checkpoint pin --arm mine --params raw`",
    ):
        assert command in str(caught.value)
    (tmp_path / "one").mkdir()
    with pytest.raises(ConfigError) as caught:
        make_plan(options(pinned(tmp_path / "one", checkpoint_digest="")))
    assert "norm-stats import" not in str(caught.value)


def test_a_row_of_any_weights_becomes_one_of_the_weights_vouched_for(tmp_path):
    table = write_arms(tmp_path)
    pin(table, "--yes", params="ema")
    row = load_arms(table)["mine"]
    assert (row.params, row.checkpoint_digest) == ("ema", checkpoint_digest(CHECKPOINT))


def test_an_average_is_not_pinned_as_raw_and_the_command_that_extracts_is_named(table, tmp_path):
    step = write_step(tmp_path, raw=tiny_weights(1))
    before = table.read_text()
    with pytest.raises(CheckpointError) as caught:
        pin(table, "--yes", "--dir", str(step))
    assert f"`policy-server checkpoint extract-raw {step} --out DIR`" in str(caught.value)
    assert table.read_text() == before


def test_raw_weights_are_not_pinned_as_an_average(table, tmp_path):
    step = write_step(tmp_path, raw=None)
    with pytest.raises(CheckpointError, match=r"holds raw weights .*kept no average"):
        pin(table, "--yes", "--dir", str(step), params="ema")


def test_extracted_weights_are_pinned_and_the_average_beside_them_is_not_served(table, tmp_path):
    step = write_step(tmp_path, raw=tiny_weights(1))
    extract_raw(step, tmp_path / "raw")
    pin(table, "--yes", "--dir", str(tmp_path / "raw"))
    plan = make_plan(options(table, dir=tmp_path / "raw"))
    assert load_policy(plan, None).checkpoint_digest == RAW_DIGEST
    with pytest.raises(CheckpointError, match=r"holds ema weights .*extract-raw"):
        make_plan(options(table, dir=step))


def test_an_average_moved_away_from_its_train_state_is_refused_by_the_pin(table, tmp_path):
    step = write_step(tmp_path, raw=tiny_weights(1))
    extract_raw(step, tmp_path / "raw")
    pin(table, "--yes", "--dir", str(tmp_path / "raw"))
    plan = make_plan(options(table, dir=(step / "params").rename(tmp_path / "moved")))
    with pytest.raises(CheckpointError, match=f"digest {AVERAGE_DIGEST}, .*{RAW_DIGEST}; give"):
        load_policy(plan, None)


@pytest.mark.parametrize("answer", ["y\n", "yes\n", "YES\n"])
def test_it_asks_once_on_a_terminal(table, monkeypatch, capsys, answer):
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    pin(table)
    question = capsys.readouterr().out.partition("[y/N]")[0]
    digest = checkpoint_digest(CHECKPOINT)
    for part in (digest, "does not say", f"{CHECKPOINT} holds the raw weights of arm 'mine'?"):
        assert part in question
    assert load_arms(table)["mine"].checkpoint_digest == digest


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "maybe\n"])
def test_without_a_yes_nothing_is_pinned(table, monkeypatch, answer):
    before = table.read_text()
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    with pytest.raises(CheckpointError, match="nothing was pinned"):
        pin(table)
    assert table.read_text() == before


def test_where_nobody_can_be_asked_the_flag_is_named(table, monkeypatch):
    before = table.read_text()
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(ConfigError, match=r"asks on a terminal .* add --yes"):
        pin(table)
    assert table.read_text() == before


def test_a_pin_that_is_replaced_is_named(tmp_path, monkeypatch, capsys):
    table = pinned(tmp_path)
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    pin(table)
    assert f"the row is pinned to {'0' * 64}" in capsys.readouterr().out


def test_weights_that_the_arm_could_not_serve_are_not_pinned(table, tmp_path):
    weights = tiny_weights(0)
    weights["state_proj/kernel"] = weights.pop("time_mlp_in/kernel")
    write_params(tmp_path / "pi0", weights.items())
    with pytest.raises(CheckpointError, match="pi0 checkpoint"):
        pin(table, "--yes", "--dir", str(tmp_path / "pi0"))


def test_a_missing_checkpoint_names_this_commands_flags(tmp_path):
    table = pinned(tmp_path, checkpoint="absent", checkpoint_digest="")
    with pytest.raises(CheckpointError, match=r"give it with --dir, .* with --checkpoints-root"):
        pin(table, "--yes", "--checkpoints-root", str(tmp_path))
