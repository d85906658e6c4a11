"""What is said where RoboCasa is not or only half installed; runs without it."""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sim_client.envs import robocasa_setup
from sim_client.envs.robocasa import RobocasaEnv
from sim_client.envs.robocasa_tasks import check_task, expand_tasks
from sim_client.envs.robosuite_setup import load_robosuite
from sim_client.errors import ConfigError

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "install_robocasa.sh"


def install(*options, root=ROOT, **environ):
    """Run the script of the repository at `root`."""
    return subprocess.run(
        ["bash", str(root / "scripts" / SCRIPT.name), *options],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


# --- the script ---------------------------------------------------------------------------------


def test_a_dry_run_prints_the_pinned_commands_and_makes_nothing(tmp_path):
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    done = install("--dry-run", root=tmp_path)
    assert done.returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]
    pins = re.findall(r"(\w+) @ git\+https://github\.com/\S+?@([0-9a-f]{40})$", done.stderr, re.M)
    assert dict(pins) == {
        "robosuite": "5ce6643f3092639d08f7b0f90ed1c6a84f50552c",
        "robocasa": "be22d659b02db8f6d7f3a3c3edc742934fdcbaae",
    }
    pip_lines = [line for line in done.stderr.splitlines() if " pip install " in line]
    assert len(pip_lines) == 3
    assert all("--no-deps" in line for line in pip_lines)
    packages = pip_lines[-1].split()[pip_lines[-1].split().index("--python") + 2 :]
    assert "gymnasium==1.4.0" in packages
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+", package) for package in packages)
    assert "download_kitchen_assets" in done.stderr


def test_no_assets_leaves_out_the_download_and_says_what_follows(tmp_path):
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    done = install("--dry-run", "--no-assets", root=tmp_path)
    assert done.returncode == 0
    assert "download_kitchen_assets" not in done.stderr
    assert "no scene can be built without them" in done.stderr


def test_an_unknown_option_is_refused_with_the_known_ones():
    done = install("--force")
    assert done.returncode == 2
    assert "--no-assets and --dry-run, not '--force'" in done.stderr


def test_where_github_is_not_reached_one_sentence_says_so(tmp_path):
    """The environment is stood in for: only the step after it is looked at."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    with (tmp_path / "scripts" / "bootstrap.sh").open("a") as bootstrap:
        bootstrap.write("ensure_env() { :; }\nfind_uv() { echo false; }\n")
    done = install(
        root=tmp_path,
        GIT_CONFIG_COUNT="1",
        GIT_CONFIG_KEY_0=f"url.file://{tmp_path}/nowhere/.insteadOf",
        GIT_CONFIG_VALUE_0="https://github.com/",
    )
    assert done.returncode == 2
    *_, last = done.stderr.splitlines()
    assert "robosuite comes from https://github.com/ARISE-Initiative/robosuite" in last
    assert "which this machine does not reach" in last
    assert last.endswith("run ./eval.sh install robocasa again.")


# --- the adapter --------------------------------------------------------------------------------


@pytest.fixture
def without_robocasa(monkeypatch):
    monkeypatch.delitem(sys.modules, "robocasa", raising=False)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "robocasa" else find_spec(name, *rest),
    )


@pytest.mark.usefixtures("without_robocasa")
@pytest.mark.parametrize("ask", [check_task, expand_tasks, RobocasaEnv])
def test_without_robocasa_one_sentence_has_the_command(ask):
    with pytest.raises(ConfigError, match=r"is not installed.*with \./eval\.sh install robocasa\."):
        ask("PickPlaceCounterToCabinet")


@pytest.mark.parametrize("split", ["test", "all", ""])
def test_a_split_of_no_benchmark_is_refused_before_anything_is_imported(split):
    with pytest.raises(ConfigError, match=rf"--args\.split '{split}'.*expected target or pretrain"):
        RobocasaEnv("PickPlaceCounterToCabinet", split=split)


@pytest.mark.parametrize(("package", "found"), [("mujoco", "3.9.0"), ("numpy", "1.26.4")])
def test_another_mujoco_or_numpy_is_refused_by_name(monkeypatch, package, found):
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: found if name == package else version(name)
    )
    with pytest.raises(ConfigError, match=rf"{package} \S+ only, found {package} {found}.*install"):
        robocasa_setup.check_versions()


def test_the_locked_versions_are_the_ones_robocasa_asserts():
    robocasa_setup.check_versions()


@pytest.mark.skipif(
    importlib.util.find_spec("robocasa") is not None, reason="this robosuite is RoboCasa's"
)
def test_the_package_indexs_robosuite_is_refused_although_its_number_is_right():
    assert load_robosuite().__version__ == "1.5.2"
    with pytest.raises(ConfigError, match=r"robosuite 1\.5\.2.*load_model_on_init.*install"):
        robocasa_setup.check_robosuite()


@pytest.fixture
def assets(tmp_path):
    """A folder with something in each part of the download."""
    for name in ("textures", "fixtures", "objects/objaverse", "objects/lightwheel"):
        (tmp_path / name / "one").mkdir(parents=True)
        (tmp_path / name / "one" / "file").touch()
    return tmp_path


@pytest.mark.parametrize(
    "part", ["textures", "fixtures", "objects/objaverse", "objects/lightwheel"]
)
def test_a_part_of_the_assets_that_is_absent_is_named(assets, part):
    robocasa_setup.check_assets(assets)
    (assets / part / "one" / "file").unlink()
    with pytest.raises(ConfigError, match=rf"incomplete: \S+/{part} holds nothing.*install"):
        robocasa_setup.check_assets(assets)


def test_an_asset_folder_that_cannot_be_written_to_is_named(assets, monkeypatch):
    def refuse(**_):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    with pytest.raises(ConfigError, match=r"must be writable.*\(Read-only file system\)"):
        robocasa_setup.check_assets(assets)


def test_the_check_for_writing_leaves_no_file(assets):
    before = sorted(assets.rglob("*"))
    robocasa_setup.check_assets(assets)
    assert sorted(assets.rglob("*")) == before
