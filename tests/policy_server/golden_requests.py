"""Whole requests as openpi answered them: what came in, what the model got, what went out."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden_data import COMPACT, golden_roots
from policy_server.norm_stats import FieldStats, NormStats
from policy_server.norm_stats_file import load_norm_stats
from policy_server.request_path import RequestPath
from policy_server.robots import ROBOTS
from policy_server.tokenizer import Tokenizer

ACTION_DIM = 32
MAX_TOKEN_LEN = 200


@dataclasses.dataclass(frozen=True)
class GoldenRequest:
    """One recorded request: where it lies and how openpi was set up."""

    root: Path
    robot: str
    prefix: str  # of the case in the file
    norm_mode: Any
    state_padding: Any
    discrete_state_input: bool
    action_horizon: int
    stats_asset: str = ""  # else the stats lie in the file

    def __str__(self) -> str:
        where = "compact" if self.root == COMPACT else "full"
        name = {"panda_omron": "robocasa"}.get(self.robot, self.robot)
        return f"{where}-{name}" + (f"-{self.prefix.rstrip('/')}" if self.prefix else "")

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Everything recorded of this case, without its prefix, and what the file's cases share."""
        name = {"panda_omron": "robocasa"}.get(self.robot, self.robot)
        path = self.root / f"e2e_pi05_{name}.npz"
        self.need(path.is_file(), path.name)
        with np.load(path) as file:
            return {key.removeprefix(self.prefix): file[key] for key in file.files}

    def need(self, present: bool, what: str) -> None:
        """Skip where the committed selection is smaller; the whole set must have everything."""
        if not present and self.root == COMPACT:
            pytest.skip(f"{what} is not in the committed selection")
        assert present, what

    def request(self, arrays: dict[str, np.ndarray]) -> tuple[dict[str, Any], bool]:
        """The request, gray standing in for missing images, and whether none was missing."""
        request: dict[str, Any] = {}
        for key, value in arrays.items():
            if key.startswith("obs/"):
                _put(request, key.removeprefix("obs/").split("|"), value)
        robot = ROBOTS[self.robot]
        recorded = True
        for camera in robot.cameras:
            images = request.setdefault(robot.images_key, {}) if robot.images_key else request
            used = bool(arrays[f"model_in/image_mask/{camera.slot}"])
            if used and camera.key not in images:
                recorded = False
                shape = (3, 8, 8) if robot.channels_first else (8, 8, 3)
                images[camera.key] = np.full(shape, 127, np.uint8)
        return request, recorded

    def path(self) -> RequestPath:
        """Our request path, set up as openpi was."""
        return RequestPath(
            robot=ROBOTS[self.robot],
            stats=self._stats(),
            norm_mode=self.norm_mode,
            state_padding=self.state_padding,
            discrete_state_input=self.discrete_state_input,
            action_dim=ACTION_DIM,
            action_horizon=self.action_horizon,
            max_token_len=MAX_TOKEN_LEN,
            tokenizer=Tokenizer(self.root / "tokenizer" / "tiny_paligemma_like.model"),
        )

    def _stats(self) -> NormStats:
        if self.stats_asset:
            assets = self.root / "ckpt_dummy_plain_bf16" / "assets"
            return load_norm_stats(assets / self.stats_asset / "norm_stats.json")
        arrays = dataclasses.replace(self, prefix=self.prefix.split("/")[0] + "/").arrays

        def field(name: str) -> FieldStats:
            keys = ("mean", "std", "q01", "q99")
            return FieldStats(*(arrays[f"stats/{name}/{key}"] for key in keys))

        return NormStats(field("state"), field("actions"), sha256="0" * 64, source=str(self))


def _put(tree: dict[str, Any], path: list[str], value: np.ndarray) -> None:
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = value


def golden_requests() -> Iterator[GoldenRequest]:
    """Every recorded request, of every folder of golden vectors that is here."""
    for root in golden_roots():
        for prefix, padding in (
            ("pad_before_stats32", "before_normalization"),
            ("pad_after_stats16", "after_tokenization"),
        ):
            for mode in ("zscore", "quantile"):
                yield GoldenRequest(
                    root, "panda_omron", f"{prefix}/{mode}/", mode, padding, True, 50
                )
        for robot, discrete, horizon, asset in (
            ("droid", True, 15, "droid"),
            ("libero", False, 10, "physical-intelligence/libero"),
            ("aloha", True, 50, "trossen"),
        ):
            yield GoldenRequest(
                root, robot, "", "quantile", "after_tokenization", discrete, horizon, asset
            )
