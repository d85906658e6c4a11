"""The announcement: everything the actions depend on, in types that msgpack knows."""

import dataclasses
import subprocess
from pathlib import Path

import msgpack
import numpy as np
import pytest
from served_arm import CHECKPOINT, options, write_arms, write_norm_stats

from policy_server import metadata as module
from policy_server.determinism import Determinism
from policy_server.metadata import (
    checkpoint_name,
    make_metadata,
    server_revision,
    training_step,
    transforms_sha256,
)
from policy_server.plan import make_plan
from policy_server.policy import LoadedPolicy, Policy, open_request_path
from policy_server.protocol import NoiseSpec

DETERMINISM = Determinism("--xla_x=1", False, "because")
NOISE = NoiseSpec((50, 32), required=True, seed=0)


def no_model(images, image_masks, tokens, token_mask, noise):
    raise AssertionError("announcing asks no model")


def announce(table: Path, **changes) -> dict:
    plan = make_plan(options(table, **changes))
    path = open_request_path(plan)
    loaded = LoadedPolicy(
        policy=Policy(path, no_model),
        request_path=path,
        checkpoint_digest="d" * 64,
        weights="f32",
        platform="cpu",
        device_kind="some cpu",
    )
    return make_metadata(
        plan, loaded, determinism=DETERMINISM, selfcheck_sha256="c" * 64, noise=NOISE
    )


@pytest.fixture
def announced(tmp_path):
    return announce(write_arms(tmp_path))


def test_it_is_made_of_plain_msgpack_types(announced):
    assert msgpack.unpackb(msgpack.packb(announced)) == announced


def test_it_says_what_is_served(announced):
    assert announced["protocol"]["version"] == 1
    assert announced["arm"] == "mine"
    assert (announced["action_horizon"], announced["action_dim"]) == (50, 32)
    assert (announced["replan_steps"], announced["sample_steps"]) == (5, 10)
    assert announced["robot"]["name"] == "panda_omron"
    assert sum(width for _, width in announced["robot"]["state_layout"]) == 16
    assert announced["robot"]["image_keys"][0] == "observation/image"
    assert announced["noise"] == {"required": True, "shape": [50, 32], "dtype": "float32"}
    assert announced["determinism"] == {
        "xla_flags": "--xla_x=1",
        "deterministic": False,
        "why": "because",
        "autotune_sha256": None,
        "excess_precision": False,
        "matmul_precision": {"float32": "highest"},
        "selfcheck_sha256": "c" * 64,
    }
    assert announced["checkpoint"] == {
        "name": CHECKPOINT.name,
        "digest": "d" * 64,
        "params_kind": "unknown",
        "step": None,
    }
    assert (announced["device"], announced["weights"]) == (
        {"platform": "cpu", "kind": "some cpu"},
        "f32",
    )
    assert (announced["max_batch"], announced["compute_dtype"]) == (1, "bfloat16")
    assert announced["protocol_deviation"] == []


def test_it_names_the_norm_stats(announced):
    stats = announced["norm_stats"]
    assert (stats["mode"], stats["asset"], stats["width"]) == ("quantile", "mine", 32)
    assert len(stats["sha256"]) == 64
    assert (stats["state_padding"], stats["padded"]) == ("before_normalization", [])


def test_it_has_the_version_of_everything_that_computes_actions(announced):
    assert set(announced["versions"]) == {
        "policy_server", "jax", "jaxlib", "flax", "orbax", "numpy", "pillow", "sentencepiece",
        "python",
    }  # fmt: skip
    assert announced["versions"]["numpy"] == np.__version__


def test_a_deviation_is_announced(tmp_path):
    changes = {"action_horizon": 10, "allow_protocol_deviation": True}
    announced = announce(write_arms(tmp_path), **changes)
    assert announced["protocol_deviation"] == ["action_horizon 10 instead of 50"]
    assert announced["action_horizon"] == 10


def test_the_transforms_digest_moves_with_every_setting_of_the_request_path(tmp_path):
    table = write_arms(tmp_path)
    digest = announce(table)["transforms_sha256"]
    assert announce(table)["transforms_sha256"] == digest
    others = [
        announce(write_arms(tmp_path, **change))["transforms_sha256"]
        for change in (
            {"norm_mode": "zscore"},
            {"discrete_state_input": False},
            {"max_token_len": 100},
            {"action_horizon": 20},
        )
    ]
    write_arms(tmp_path)
    write_norm_stats(tmp_path / "mine" / "norm_stats.json", scale=2.0)
    others.append(announce(table)["transforms_sha256"])
    assert len({digest, *others}) == 6


def test_the_transforms_digest_does_not_depend_on_the_arms_name_or_the_keys_order():
    assert transforms_sha256({"a": 1, "b": [2]}) == transforms_sha256({"b": [2], "a": 1})


@pytest.mark.parametrize(
    ("directory", "name", "step"),
    [
        ("pi05_60k_rawparams", "pi05_60k_rawparams", None),
        ("run/59999", "run/59999", 59999),
        ("run/59999/params", "run/59999", 59999),
    ],
)
def test_a_checkpoint_is_named_by_its_directory(tmp_path, directory, name, step):
    assert checkpoint_name(tmp_path / directory) == name
    assert training_step(tmp_path / directory) == step


def test_the_revision_is_the_commit_of_this_tree():
    head = subprocess.run(
        ["git", "-C", Path(module.__file__).parent, "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    if head.returncode:
        pytest.skip("not a git checkout")
    assert server_revision().removesuffix("-dirty") == head.stdout.strip()


def test_without_git_the_revision_is_the_packages_version(monkeypatch, announced):
    monkeypatch.setenv("PATH", "")
    assert server_revision() == announced["versions"]["policy_server"]


def test_a_module_that_git_does_not_track_has_no_commit(monkeypatch, tmp_path, announced):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "metadata.py").touch()
    monkeypatch.setattr(module, "__file__", str(tmp_path / "metadata.py"))
    assert server_revision() == announced["versions"]["policy_server"]


def test_the_announcement_does_not_change_while_a_server_runs(tmp_path):
    table = write_arms(tmp_path)
    assert announce(table) == announce(table)
    announced = announce(table)["determinism"]
    assert dataclasses.asdict(DETERMINISM).items() <= announced.items()
