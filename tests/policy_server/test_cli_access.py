"""Refusals of the flags about keys, certificates and tuned kernels, as a user sees them."""

import jax
import pytest
from served_arm import write_arms
from test_cli import refused, run, serve

from policy_server.commands import require_gpu
from policy_server.errors import ConfigError


@pytest.fixture
def table(tmp_path) -> str:
    return str(write_arms(tmp_path))


def test_other_machines_are_not_served_without_a_key(table):
    line = refused(serve(table, "--host", "0.0.0.0", "--port", "0"))
    assert "0.0.0.0 can be reached from other machines" in line
    assert "--api-key-file" in line


def test_a_key_file_that_is_missing_is_refused_before_the_weights_are_read(table, tmp_path):
    line = refused(serve(table, "--api-key-file", "/no/such/key", "--policy.dir", str(tmp_path)))
    assert "--api-key-file /no/such/key cannot be read" in line


def test_a_certificate_without_a_key_is_refused(table, tmp_path):
    assert "given together" in refused(serve(table, "--tls-cert", str(tmp_path / "cert.pem")))


def test_tuned_kernels_that_are_missing_come_with_the_command_that_writes_them(table):
    line = refused(serve(table, "--policy.autotune", "/no/such/tuned.pb"))
    assert "--policy.autotune /no/such/tuned.pb cannot be read" in line
    assert "policy-server tune --policy.arm ARM --out FILE" in line


def test_a_cpu_has_nothing_to_tune_and_loads_no_tuned_kernels(table, tmp_path):
    arm = ("--policy.arm", "mine", "--policy.arms-file", table)
    out = tmp_path / "tuned.pb"
    done = run("tune", *arm, "--out", str(out), JAX_PLATFORMS="cpu")
    assert "tune needs a GPU" in refused(done)
    assert not out.exists()
    if jax.devices()[0].platform == "cpu":
        with pytest.raises(ConfigError, match=r"--policy\.autotune needs a GPU"):
            require_gpu("--policy.autotune")


def test_openpis_command_line_is_one_sentence():
    line = refused(run("policy:checkpoint", "--policy.config", "pi05_droid", "--policy.dir", "D"))
    assert line.endswith("use --policy.arm pi05_droid --policy.dir D.")
