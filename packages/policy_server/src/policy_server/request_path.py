"""From a request to the model's input, and from the model's actions to the robot's.

The order is openpi's (src/openpi/policies/policy_config.py, 15a9616): the robot's own reading,
normalisation, resize, prompt, padding; and back unnormalisation, absolute actions, robot's units.
RoboCasa's fork pads the state before it normalises it, so that its prompt holds the padding too.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64, UInt8

from policy_server.errors import NormStatsError
from policy_server.images import IMAGE_SIZE
from policy_server.norm_stats import (
    NORM_STATS_FLAG,
    NormMode,
    NormStats,
    StatePadding,
    normalize,
    pad_zscore,
    unnormalize,
)
from policy_server.observation import read_images, read_prompt, read_state, refuse_unknown_keys
from policy_server.prompt import TokenizedPrompt, tokenize_prompt
from policy_server.robots import IMAGE_SLOTS, RobotSpec
from policy_server.state_watch import far_out_warning
from policy_server.tokenizer import Tokenizer
from policy_server.transforms import pad_to_width, to_absolute


@dataclasses.dataclass(frozen=True, eq=False)
class ModelInput:
    """One request as the model takes it, without a batch axis.

    Attributes:
        images: By slot, in the model's order.
        image_masks: By slot, whether a camera is there.
        tokens: Piece ids of the prompt, padded with 0.
        token_mask: True where a piece is.
        state: Normalised state, padded with zeros to the model's width.
        warnings: What is odd about this request, one sentence each.
    """

    images: dict[str, UInt8[np.ndarray, "224 224 3"]]
    image_masks: dict[str, bool]
    tokens: Int64[np.ndarray, " l"]
    token_mask: Bool[np.ndarray, " l"]
    state: Float64[np.ndarray, " a"]
    warnings: tuple[str, ...]


def stats_widths(robot: RobotSpec, state_padding: StatePadding, action_dim: int) -> dict[str, int]:
    """How wide the stats of state and actions must be: the model's width, or the robot's."""
    if state_padding == "before_normalization":
        return {"state": action_dim, "actions": action_dim}
    return {"state": robot.state_width, "actions": robot.action_width}


def fit_norm_stats(
    stats: NormStats,
    *,
    robot: RobotSpec,
    norm_mode: NormMode,
    state_padding: StatePadding,
    action_dim: int,
) -> NormStats:
    """Widen stats where the training did so too: z-score stats of the robot's own widths.

    Returns:
        `stats` itself, or new ones with a note, for `RequestPath` to check.
    """
    unpadded = {"state": robot.state_width, "actions": robot.action_width}
    padded = stats_widths(robot, state_padding, action_dim)
    allowed = all(getattr(stats, name).width in (unpadded[name], padded[name]) for name in unpadded)
    if norm_mode == "zscore" and state_padding == "before_normalization" and allowed:
        return pad_zscore(stats, action_dim)
    return stats


def check_fit(
    stats: NormStats,
    *,
    robot: RobotSpec,
    norm_mode: NormMode,
    state_padding: StatePadding,
    action_dim: int,
    flag: str = NORM_STATS_FLAG,
) -> None:
    """Refuse stats that do not fit, where openpi would cut or pad them.

    Raises:
        NormStatsError: The widths are others, or the mode needs quantiles that are not there; it
            names `flag`, which gives other stats.
    """
    stats.check_mode(norm_mode, flag)
    for name, width in stats_widths(robot, state_padding, action_dim).items():
        found = getattr(stats, name).width
        if found != width:
            raise NormStatsError(
                f"the norm stats {stats.source} have {found} numbers for {name!r}, robot "
                f'{robot.name!r} with state_padding "{state_padding}" needs {width} '
                f"(norm_mode {norm_mode}); give the arm's own file with {flag}."
            )


@dataclasses.dataclass(frozen=True, eq=False)
class RequestPath:
    """One arm's way from the wire to the model and back, as two pure functions.

    Attributes:
        robot: The robot's table.
        stats: Norm stats of exactly the widths of `stats_widths`; see `fit_norm_stats`.
        norm_mode: Which way to normalise.
        state_padding: Whether the state is padded before it is normalised or after it went into the
            prompt.
        discrete_state_input: Whether the prompt holds the state.
        action_dim: Width of the model's state and actions.
        action_horizon: Actions in a chunk.
        max_token_len: Length of the prompt.
        tokenizer: The model's tokenizer.
    """

    robot: RobotSpec
    stats: NormStats
    norm_mode: NormMode
    state_padding: StatePadding
    discrete_state_input: bool
    action_dim: int
    action_horizon: int
    max_token_len: int
    tokenizer: Tokenizer

    def __post_init__(self) -> None:
        """Refuse stats that do not fit, where openpi would cut or pad them.

        Raises:
            NormStatsError: The widths are others, or the mode needs quantiles that are not there.
        """
        check_fit(
            self.stats,
            robot=self.robot,
            norm_mode=self.norm_mode,
            state_padding=self.state_padding,
            action_dim=self.action_dim,
        )

    def describe(self) -> dict[str, Any]:
        """Everything that decides what `prepare` and `finish` do, as plain msgpack types."""
        return {
            "robot": self.robot.describe(),
            "norm_mode": self.norm_mode,
            "norm_stats_sha256": self.stats.sha256,
            "norm_stats_notes": list(self.stats.notes),
            "state_padding": self.state_padding,
            "discrete_state_input": self.discrete_state_input,
            "action_dim": self.action_dim,
            "action_horizon": self.action_horizon,
            "max_token_len": self.max_token_len,
            "tokenizer_sha256": self.tokenizer.sha256,
            "resize": f"PIL bilinear with padding to {IMAGE_SIZE}",
        }

    def prepare(self, request: Mapping[str, Any]) -> ModelInput:
        """Turn a request into the model's input.

        Args:
            request: The robot's keys as they came off the wire; read only. `noise`, `query` and
                keys that do not look like observations are ignored.

        Raises:
            RequestError: A key is missing, unknown or not what the robot's table says.
        """
        refuse_unknown_keys(self.robot, request)
        images = read_images(self.robot, request)
        state = self._normalized_state(read_state(self.robot, request))
        prompt = tokenize_prompt(
            self.tokenizer,
            read_prompt(self.robot, request),
            state if self.discrete_state_input else None,
            max_token_len=self.max_token_len,
        )
        black = np.zeros((IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
        return ModelInput(
            images={slot: images.get(slot, black) for slot in IMAGE_SLOTS},
            image_masks={slot: slot in images for slot in IMAGE_SLOTS},
            tokens=prompt.tokens,
            token_mask=prompt.mask,
            state=pad_to_width(state, self.action_dim),
            warnings=tuple(text for text in self._warnings(prompt, state) if text is not None),
        )

    def finish(
        self, raw_actions: Float32[np.ndarray, "h a"], model_input: ModelInput
    ) -> Float64[np.ndarray, "h w"]:
        """Turn the model's chunk into the robot's.

        Args:
            raw_actions: Normalised actions, shape (action_horizon, action_dim).
            model_input: What they answer; relative actions are relative to its state.

        Returns:
            Actions in the robot's units, shape (action_horizon, robot.action_width).
        """
        # columns beyond the stats are the padding of the training's actions and belong to no part
        trained = raw_actions[:, : self.stats.actions.width]
        actions = unnormalize(trained, self.stats.actions, self.norm_mode)
        actions = actions[:, : self.robot.action_width]
        if self.robot.delta_mask is not None:
            state = self._restored_state(model_input)
            actions = to_absolute(actions, state, np.array(self.robot.delta_mask))
        if self.robot.actions_from_model is not None:
            actions = self.robot.actions_from_model(actions)
        return actions

    def _normalized_state(self, state: Float64[np.ndarray, " d"]) -> Float64[np.ndarray, " w"]:
        if self.robot.state_to_model is not None:
            state = self.robot.state_to_model(state)
        if self.state_padding == "before_normalization":
            state = pad_to_width(state, self.action_dim)
        return normalize(state, self.stats.state, self.norm_mode)

    def _restored_state(self, model_input: ModelInput) -> Float64[np.ndarray, " d"]:
        # through float32, as openpi takes it back from the model's input
        state = model_input.state.astype(np.float32)[: self.stats.state.width]
        return unnormalize(state, self.stats.state, self.norm_mode)[: self.robot.state_width]

    def _warnings(
        self, prompt: TokenizedPrompt, state: Float64[np.ndarray, " w"]
    ) -> tuple[str | None, ...]:
        cut = None
        if prompt.n_tokens > self.max_token_len:
            cut = (
                f"the prompt has {prompt.n_tokens} tokens, cut to {self.max_token_len}: "
                "the model does not see its end"
            )
        return cut, far_out_warning(state, self.robot.state_layout)
