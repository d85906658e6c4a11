"""The commands `policy-server norm-stats ...` as they are typed, and what they print."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from lerobot_files import make_frames, write_dataset
from served_arm import options, write_norm_stats
from test_norm_stats_import import sha256, table_without_stats

import golden_data
from policy_server import __main__
from policy_server.norm_stats_file import load_norm_stats
from policy_server.plan import make_plan

DEMO = golden_data.REPO / "norm_stats" / "demo" / "norm_stats.json"


@pytest.fixture
def run(monkeypatch, capsys):
    """Type a command; gives its exit code, what it printed and what it complained of."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["policy-server", "norm-stats", *map(str, words)])
        code = 0
        try:
            __main__.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run


def test_inspect_says_what_the_numbers_are_good_for(run):
    code, printed, _ = run("inspect", DEMO)
    assert code == 0
    assert printed.splitlines() == [
        f"sha256 {sha256(DEMO)}",
        "norm_mode zscore or quantile",
        "state: 32 numbers, mean, std, q01, q99",
        "state: 16 to 31 look like padding (mean 0, std 1)",
        "actions: 32 numbers, mean, std, q01, q99",
        "actions: 12 to 31 look like padding (mean 0, std 1)",
        "state: std is 0 in 10, 11",
        "state: q01 equals q99 in 10, 11",
    ]


def test_inspect_of_stats_without_quantiles_or_padding_is_shorter(run, tmp_path):
    field = {"mean": [0.0, 1.0], "std": [1.0, 1.0], "q01": None, "q99": None}
    path = tmp_path / "norm_stats.json"
    path.write_text(json.dumps({"norm_stats": {"state": field, "actions": field}}))
    _, printed, _ = run("inspect", path)
    assert printed.splitlines() == [
        f"sha256 {sha256(path)}",
        "norm_mode zscore",
        "state: 2 numbers, mean, std",
        "actions: 2 numbers, mean, std",
    ]


def test_import_prints_what_was_done_and_the_pin(run, tmp_path):
    table = table_without_stats(tmp_path)
    given = tmp_path / "given" / "norm_stats.json"
    write_norm_stats(given)
    code, printed, _ = run("import", "--arm", "mine", "--from", given, "--arms-file", table)
    assert code == 0
    assert printed.splitlines() == [
        "openpi's file, kept byte for byte",
        f"{tmp_path / 'mine' / 'norm_stats.json'} sha256 {sha256(given)}",
        f"arm mine is pinned to it in {table}",
    ]


def test_compute_import_and_a_start_go_together(run, tmp_path):
    frames = make_frames()
    dataset = write_dataset(tmp_path / "demonstrations", frames, version="v3.0")
    out = tmp_path / "computed" / "norm_stats.json"
    out.parent.mkdir()

    code, printed, _ = run("compute", "--from", dataset, "--out", out, "--robot", "panda_omron")

    assert code == 0
    assert f"{sum(map(len, frames.states))} frames in 2 files" in printed
    assert f"{out} sha256 {sha256(out)}" in printed
    stats = load_norm_stats(out)
    assert (stats.state.width, stats.actions.width) == (32, 32)
    rows = frames.fields()
    np.testing.assert_allclose(stats.state.mean[:16], rows["state"].mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(stats.actions.std[:12], rows["actions"].std(axis=0), atol=1e-12)
    for mode in ("zscore", "quantile"):
        (tmp_path / mode).mkdir()
        table = table_without_stats(tmp_path / mode, norm_mode=mode)
        constants = ("state.base_position.2", "actions.base_motion.3")
        words = ("--arm", "mine", "--from", out, "--arms-file", table)
        code, printed, complaint = run("import", *words, "--allow-constant", *constants)
        assert code == 0, complaint
        assert make_plan(options(table)).arm.norm_stats_sha256 == sha256(out)


def test_compute_without_padding_gives_the_robots_own_widths(run, tmp_path):
    dataset = write_dataset(tmp_path / "demonstrations", make_frames())
    out = tmp_path / "norm_stats.json"
    words = ("--robot", "panda_omron", "--state-padding", "after_tokenization")
    code, printed, _ = run("compute", "--from", dataset, "--out", out, *words)
    assert code == 0
    assert "padded" not in printed
    stats = load_norm_stats(out)
    assert (stats.state.width, stats.actions.width) == (16, 12)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("inspect", "absent.json"), "absent.json cannot be read"),
        (("import", "--arm", "base", "--from", "absent"), "absent cannot be read"),
        (
            ("compute", "--from", "absent", "--out", "o", "--robot", "panda_omron"),
            "absent is no LeRobot dataset",
        ),
        (
            ("compute", "--from", "absent", "--out", "o", "--robot", "droid", "--action-dim", "7"),
            "--action-dim 7 is less than the 8 numbers",
        ),
        (
            ("compute", "--from", "absent", "--out", DEMO, "--robot", "panda_omron"),
            "norm_stats.json exists; choose another file",
        ),
    ],
)
def test_a_mistake_ends_with_2_and_one_sentence(run, tmp_path, monkeypatch, words, complaint):
    monkeypatch.chdir(tmp_path)
    code, printed, said = run(*words)
    assert code == 2
    assert printed == ""
    assert complaint in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_compute_does_not_leave_a_traceback_where_it_cannot_write(run, tmp_path):
    dataset = write_dataset(tmp_path / "demonstrations", make_frames())
    out = tmp_path / "absent" / "norm_stats.json"
    code, _, said = run("compute", "--from", dataset, "--out", out, "--robot", "panda_omron")
    assert code == 2
    assert f"--out {out} cannot be written (No such file or directory)." in said


def test_the_commands_need_no_jax(tmp_path: Path):
    script = (
        "import sys; from policy_server.__main__ import main; "
        f"sys.argv = ['policy-server', 'norm-stats', 'inspect', {str(DEMO)!r}]; main(); "
        "sys.exit('jax' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
