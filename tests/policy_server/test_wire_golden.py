"""The shipped rows for openpi's public checkpoints answer recorded requests over a websocket.

The weights are the recorded tiny ones; everything else is the row's.
"""

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden_requests import GoldenRequest, golden_requests
from policy_serving import serving, stock_client
from served_arm import CHECKPOINT

from policy_server.config import ARMS_FILE, PolicyOptions
from policy_server.plan import make_plan
from policy_server.policy import load_policy
from policy_server.protocol import NoiseSpec

ARMS = {"libero": "pi05_libero", "droid": "pi05_droid", "aloha": "pi05_aloha"}
CASES = [case for case in golden_requests() if case.robot in ARMS]


def write_row(case: GoldenRequest, folder: Path) -> PolicyOptions:
    """The shipped row with the recorded weights, stats and tokenizer in its places."""
    arm = ARMS[case.robot]
    row = tomllib.loads(ARMS_FILE.read_text())["arms"][arm]
    changes: dict[str, Any] = {
        "model": "any",
        "checkpoint": str(CHECKPOINT),
        "tokenizer": str(case.root / "tokenizer" / "tiny_paligemma_like.model"),
        "norm_stats": str(CHECKPOINT / "assets" / case.stats_asset / "norm_stats.json"),
        "compute_dtype": "float32",
    }
    assert Path(row["norm_stats"]).parent == Path(case.stats_asset)  # where openpi's lie
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**row, **changes}.items()]
    table = folder / "arms.toml"
    table.write_text("\n".join([f"[arms.{arm}]", *lines]))
    return PolicyOptions(arm=arm, arms_file=table)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_public_checkpoints_row_gives_openpis_actions_to_the_stock_client(case, tmp_path):
    arrays = case.arrays
    request, recorded = case.request(arrays)
    plan = make_plan(write_row(case, tmp_path))
    loaded = load_policy(plan, None)
    spec = NoiseSpec((plan.arm.action_horizon, plan.arm.action_dim), required=False, seed=0)
    noise = arrays.get("noise", spec.draw(0))
    with serving(loaded.policy.infer, {}, spec) as port, stock_client(port) as client:
        reply = client.infer({**plain(request), "noise": noise})
    assert reply["actions"].shape == arrays["actions_f32"].shape
    case.need(recorded and "noise" in arrays, "the request's images and noise")
    np.testing.assert_allclose(
        reply["actions"], arrays["actions_f32"], rtol=0, atol=1e-4, strict=True
    )


def plain(request: dict[str, Any]) -> dict[str, Any]:
    """The request as an environment sends it: text is text, not an array of one."""
    return {
        key: str(value) if isinstance(value, np.ndarray) and value.dtype.kind == "U" else value
        for key, value in request.items()
    }


def test_every_row_for_a_public_checkpoint_has_a_recorded_request():
    table = tomllib.loads(ARMS_FILE.read_text())["arms"]
    robots = {name: row["robot"] for name, row in table.items() if row["robot"] != "panda_omron"}
    assert robots == {arm: robot for robot, arm in ARMS.items()}
    assert {case.robot for case in CASES} == set(robots.values())
    for case in CASES:
        row = table[ARMS[case.robot]]
        expected = dataclasses.asdict(case)
        for key in ("norm_mode", "state_padding", "discrete_state_input", "action_horizon"):
            assert row[key] == expected[key]
