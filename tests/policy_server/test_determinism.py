"""XLA flags are completed before JAX is there, and what breaks determinism is said."""

import hashlib
import subprocess
import sys

import pytest

from policy_server.determinism import apply_determinism, merge_xla_flags
from policy_server.errors import ConfigError

DEFAULTS = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"


@pytest.fixture
def without_jax(monkeypatch):
    monkeypatch.delitem(sys.modules, "jax", raising=False)


def test_without_flags_of_the_user_the_defaults_are_set():
    assert merge_xla_flags("") == DEFAULTS


def test_flags_of_the_user_stay_and_the_defaults_follow():
    assert merge_xla_flags(" --xla_dump_to=/tmp/x ") == f"--xla_dump_to=/tmp/x {DEFAULTS}"


def test_a_default_that_the_user_sets_keeps_the_users_value_and_is_not_repeated():
    merged = merge_xla_flags("--xla_gpu_autotune_level=4 --xla_dump_to=/tmp/x")
    assert merged == (
        "--xla_gpu_autotune_level=4 --xla_dump_to=/tmp/x --xla_gpu_deterministic_ops=true"
    )


def test_merging_twice_changes_nothing():
    once = merge_xla_flags("--xla_dump_to='/tmp/a b'")
    assert merge_xla_flags(once) == once


def test_a_flag_whose_name_begins_like_a_default_does_not_replace_it():
    assert DEFAULTS in merge_xla_flags("--xla_gpu_autotune_level_of_my_own=3")


def test_flags_in_a_file_are_kept(tmp_path):
    flags = tmp_path / "flags"
    flags.write_text("--xla_dump_to=/tmp/x\n--xla_gpu_autotune_level=2\n")
    merged = merge_xla_flags(str(flags))
    assert merged.startswith("--xla_dump_to=/tmp/x --xla_gpu_autotune_level=2 ")


def test_a_flag_file_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="neither a list of --flags nor a readable file"):
        merge_xla_flags(str(tmp_path / "absent"))


def test_an_open_quotation_mark_is_an_error():
    with pytest.raises(ConfigError, match="No closing quotation"):
        merge_xla_flags("--xla_dump_to='/tmp")


@pytest.mark.usefixtures("without_jax")
def test_the_defaults_are_deterministic_and_reach_the_environment():
    environ: dict[str, str] = {}
    report = apply_determinism(environ)
    assert report.deterministic
    assert environ == {"XLA_FLAGS": DEFAULTS, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    assert report.xla_flags == DEFAULTS


@pytest.mark.usefixtures("without_jax")
@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"XLA_FLAGS": "--xla_gpu_deterministic_ops=false"}, "--xla_gpu_deterministic_ops=false"),
        ({"XLA_FLAGS": "--xla_gpu_deterministic_ops=0"}, "--xla_gpu_deterministic_ops=0"),
        ({"XLA_FLAGS": "--xla_gpu_autotune_level=4"}, "--xla_gpu_autotune_level=4 without"),
        (
            {"XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_autotune_level=1"},
            "--xla_gpu_autotune_level=1",
        ),
        ({"CUBLAS_WORKSPACE_CONFIG": ":0:0"}, "CUBLAS_WORKSPACE_CONFIG is ':0:0'"),
    ],
)
def test_a_setting_that_breaks_determinism_is_kept_and_reported(environ, reason):
    given = dict(environ)
    report = apply_determinism(environ)
    assert not report.deterministic
    assert reason in report.why
    assert all(environ[name].startswith(value) for name, value in given.items())


@pytest.mark.usefixtures("without_jax")
@pytest.mark.parametrize("value", ["", "=true", "=True", "=1"])
def test_every_way_to_switch_deterministic_ops_on_counts(value):
    assert apply_determinism({"XLA_FLAGS": f"--xla_gpu_deterministic_ops{value}"}).deterministic


@pytest.mark.usefixtures("without_jax")
def test_tuned_kernels_from_a_file_are_deterministic():
    flags = "--xla_gpu_autotune_level=4 --xla_gpu_load_autotune_results_from=tuned.pb"
    assert apply_determinism({"XLA_FLAGS": flags}).deterministic


@pytest.fixture
def tuned(tmp_path):
    path = tmp_path / "tuned kernels.pb"
    path.write_bytes(b"kernels")
    return path


TUNED = (
    "--xla_gpu_load_autotune_results_from={} "
    "--xla_gpu_require_complete_aot_autotune_results=true "
    "--xla_gpu_exclude_nondeterministic_ops=true"
)


@pytest.mark.usefixtures("without_jax")
def test_a_file_of_tuned_kernels_replaces_the_defaults_and_is_named_by_its_digest(tuned):
    environ: dict[str, str] = {}
    report = apply_determinism(environ, autotune=tuned)
    assert environ["XLA_FLAGS"] == report.xla_flags == TUNED.format(f"'{tuned}'")
    assert report.deterministic
    assert str(tuned) in report.why
    assert report.autotune_sha256 == hashlib.sha256(b"kernels").hexdigest()


@pytest.mark.usefixtures("without_jax")
def test_tuned_kernels_with_nondeterministic_ones_among_them_are_reported(tuned):
    environ = {"XLA_FLAGS": "--xla_gpu_exclude_nondeterministic_ops=false"}
    report = apply_determinism(environ, autotune=tuned)
    assert not report.deterministic
    assert "--xla_gpu_deterministic_ops=false" in report.why


@pytest.mark.usefixtures("without_jax")
def test_tuning_writes_the_file_under_none_of_the_flags_that_would_stop_it(tmp_path):
    environ = {"XLA_FLAGS": "--xla_dump_to=/tmp/x"}
    report = apply_determinism(environ, tune_out=tmp_path / "out.pb")
    dump = f"--xla_gpu_dump_autotune_results_to={tmp_path / 'out.pb'}"
    assert environ["XLA_FLAGS"] == f"--xla_dump_to=/tmp/x {dump}"
    assert not report.deterministic


@pytest.mark.usefixtures("without_jax")
def test_a_missing_file_of_tuned_kernels_names_the_command_that_writes_it(tmp_path):
    with pytest.raises(ConfigError, match=r"--policy\.autotune .*`policy-server tune"):
        apply_determinism({}, autotune=tmp_path / "absent")


def test_it_is_an_error_once_jax_is_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", sys)
    with pytest.raises(ConfigError, match="before the first import of jax"):
        apply_determinism({})


@pytest.mark.parametrize("recipe", ["", "autotune=Path(__file__)", "tune_out=Path('out.pb')"])
def test_this_jaxlib_knows_the_flags_of_every_recipe(recipe, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nfrom pathlib import Path\n"
        "from policy_server.determinism import apply_determinism\n"
        f"apply_determinism(os.environ, {recipe})\n"
        "import jax\nprint(jax.numpy.ones(3).sum())\n"
    )
    run = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (run.stdout, run.returncode) == ("3.0\n", 0), run.stderr
