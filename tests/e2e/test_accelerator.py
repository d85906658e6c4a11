"""Which build of jax serve.sh takes, on machines that are described and not there."""

import os
import subprocess

import pytest
from server_process import REPO

SCRIPT = ". scripts/bootstrap.sh; . scripts/accelerator.sh; "


def choose(tmp_path, nvidia_smi: str | None, **environ: str):
    """choose_accelerator on a machine whose nvidia-smi prints `nvidia_smi` (None: has none)."""
    if nvidia_smi is not None:
        fake = tmp_path / "nvidia-smi"
        fake.write_text(f"#!/bin/sh\n{nvidia_smi}\n")
        fake.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:{os.defpath}", **environ}
    return subprocess.run(
        ["bash", "-c", SCRIPT + "choose_accelerator"],
        cwd=REPO, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        (None, "cpu"),
        ("echo 580.65.06", "cuda13"),
        ("echo 590.1; echo 590.1", "cuda13"),
        ("echo 579.99", "cuda12"),
        ("echo 525.60.13", "cuda12"),
        ("echo 'Failed to initialize NVML'; exit 9", "cpu"),
    ],
)
def test_the_build_follows_the_driver(tmp_path, driver, expected):
    assert choose(tmp_path, driver).stdout.strip() == expected


def test_a_driver_that_is_too_old_is_one_sentence(tmp_path):
    done = choose(tmp_path, "echo 470.1")
    assert done.returncode == 2
    assert "470.1 is too old" in done.stderr
    assert "PI05_ACCELERATOR=cpu" in done.stderr


def test_the_user_may_decide_and_a_typo_is_refused(tmp_path):
    assert choose(tmp_path, "echo 590", PI05_ACCELERATOR="cpu").stdout.strip() == "cpu"
    done = choose(tmp_path, None, PI05_ACCELERATOR="cuda11")
    assert done.returncode == 2
    assert "cuda11" in done.stderr
