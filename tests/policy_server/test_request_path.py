"""What the request path refuses, warns of, and promises."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from golden_data import COMPACT
from policy_server.errors import NormStatsError, RequestError
from policy_server.norm_stats import FieldStats, NormStats
from policy_server.request_path import RequestPath, fit_norm_stats
from policy_server.robots import ROBOTS
from policy_server.tokenizer import Tokenizer

TOKENIZER = Tokenizer(COMPACT / "tokenizer" / "tiny_paligemma_like.model")


def make_stats(state_width: int, actions_width: int, *, quantiles: bool = True) -> NormStats:
    def field(width: int) -> FieldStats:
        ones = np.ones(width)
        edges = (-ones, ones) if quantiles else (None, None)
        return FieldStats(np.zeros(width), ones, *edges)

    return NormStats(field(state_width), field(actions_width), sha256="0" * 64, source="stats.json")


PANDA = RequestPath(
    robot=ROBOTS["panda_omron"],
    stats=make_stats(16, 12),
    norm_mode="zscore",
    state_padding="after_tokenization",
    discrete_state_input=True,
    action_dim=32,
    action_horizon=50,
    max_token_len=200,
    tokenizer=TOKENIZER,
)
DROID = dataclasses.replace(PANDA, robot=ROBOTS["droid"], stats=make_stats(8, 8))
ALOHA = dataclasses.replace(PANDA, robot=ROBOTS["aloha"], stats=make_stats(14, 14))


def panda_request(**changes: Any) -> dict[str, Any]:
    image = np.full((8, 8, 3), 100, np.uint8)
    return {
        "observation/image": image,
        "observation/wrist_image": image + 1,
        "observation/right_image": image + 2,
        "observation/state": np.full(16, 0.5, np.float32),
        "prompt": "open the drawer",
        **changes,
    }


def without(request: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name != key}


def droid_request(**changes: Any) -> dict[str, Any]:
    return {
        "observation/exterior_image_1_left": np.zeros((8, 8, 3), np.uint8),
        "observation/wrist_image_left": np.zeros((8, 8, 3), np.uint8),
        "observation/joint_position": np.zeros(7),
        "observation/gripper_position": np.zeros(1),
        "prompt": "open the drawer",
        **changes,
    }


def aloha_request(**images: Any) -> dict[str, Any]:
    images = images or {"cam_high": np.zeros((3, 8, 8), np.uint8)}
    return {"state": np.full(14, 0.5), "images": images, "prompt": "fold"}


@pytest.mark.parametrize("key", panda_request())
def test_a_missing_key_is_named(key: str):
    with pytest.raises(RequestError, match=f"^'{key}' is missing, expected"):
        PANDA.prepare(without(panda_request(), key))


@pytest.mark.parametrize(
    ("key", "sent"),
    [
        ("observation/left_image", np.zeros((8, 8, 3), np.uint8)),
        ("observation/states", np.zeros(16)),
        ("camera", np.zeros((8, 8, 3), np.uint8)),
        ("actions", np.zeros((1, 50, 32))),
    ],
)
def test_an_unknown_observation_is_refused_with_the_known_ones(key: str, sent: Any):
    with pytest.raises(RequestError, match=rf"^'{key}' is no key .*observation/right_image"):
        PANDA.prepare(panda_request(**{key: sent}))


@pytest.mark.parametrize("key", ["noise", "query", "timestamp"])
def test_other_keys_change_nothing(key: str):
    plain = PANDA.prepare(panda_request())
    extra = PANDA.prepare(panda_request(**{key: np.ones((50, 32))}))
    np.testing.assert_equal(dataclasses.asdict(extra), dataclasses.asdict(plain))


@pytest.mark.parametrize(
    ("state", "came"),
    [
        (np.zeros(14), r"has shape \(14,\) and dtype float64"),
        (np.zeros(32), r"has shape \(32,\) and dtype float64"),
        (np.zeros((1, 16)), r"has shape \(1, 16\)"),
        (np.zeros(16, np.bool_), r"has shape \(16,\) and dtype bool"),
        (np.array(["0"] * 16), r"has shape \(16,\) and dtype <U1"),
        ([0.0] * 16, "is of type list"),
        (0.5, r"has shape \(\)"),
        (np.append(np.zeros(15), np.nan), "holds nan at index 15"),
        (np.append(np.zeros(15), -np.inf), "holds -inf at index 15"),
        (None, "is of type NoneType"),
    ],
)
def test_a_state_that_is_not_the_robots_is_refused(state: Any, came: str):
    with pytest.raises(RequestError, match=rf"^'observation/state' {came}.* 16 finite numbers"):
        PANDA.prepare(panda_request(**{"observation/state": state}))


def test_a_wrong_image_is_named():
    with pytest.raises(RequestError, match=r"^'observation/wrist_image' has shape \(8, 8\)"):
        PANDA.prepare(panda_request(**{"observation/wrist_image": np.zeros((8, 8), np.uint8)}))


@pytest.mark.parametrize(
    ("prompt", "came"),
    [
        (3, "of type int"),
        (None, "of type NoneType"),
        (["open"], "of type list"),
        (b"open", "of type bytes"),
        (np.array(["open"]), r"an array of shape \(1,\)"),
        (np.array(3.0), r"an array of shape \(\) and dtype float64"),
        ("\ud800", "not valid Unicode"),
    ],
)
def test_a_prompt_that_is_no_text_is_refused(prompt: Any, came: str):
    with pytest.raises(RequestError, match=f"^'prompt' is {came}.* expected text"):
        PANDA.prepare(panda_request(prompt=prompt))


def test_a_prompt_may_be_an_array_of_no_dimension_or_empty():
    plain = PANDA.prepare(panda_request())
    array = PANDA.prepare(panda_request(prompt=np.array("open the drawer")))
    empty = PANDA.prepare(panda_request(prompt=""))
    np.testing.assert_array_equal(array.tokens, plain.tokens)
    assert empty.token_mask.sum() < plain.token_mask.sum()


def test_droids_prompt_may_be_bytes():
    np.testing.assert_array_equal(
        DROID.prepare(droid_request(prompt=b"open the drawer")).tokens,
        DROID.prepare(droid_request()).tokens,
    )
    with pytest.raises(RequestError, match="not valid Unicode"):
        DROID.prepare(droid_request(prompt=b"\xff"))


@pytest.mark.parametrize("gripper", [0.25, np.float32(0.25), np.array(0.25), np.array([0.25])])
def test_droids_gripper_may_be_one_number(gripper: Any):
    model_input = DROID.prepare(droid_request(**{"observation/gripper_position": gripper}))
    assert model_input.state[7] == pytest.approx(0.25, rel=1e-5)


def test_a_camera_that_aloha_lacks_is_black_and_masked_out():
    model_input = ALOHA.prepare(
        aloha_request(
            cam_high=np.full((3, 224, 224), 9, np.uint8),
            cam_right_wrist=np.full((3, 224, 224), 7, np.uint8),
        )
    )
    assert model_input.image_masks == {
        "base_0_rgb": True,
        "left_wrist_0_rgb": False,
        "right_wrist_0_rgb": True,
    }
    assert [image.max() for image in model_input.images.values()] == [9, 0, 7]


@pytest.mark.parametrize(
    ("images", "complaint"),
    [
        ({"cam_left_wrist": np.zeros((3, 8, 8), np.uint8)}, "'images/cam_high' is missing"),
        ({"cam_hihg": np.zeros((3, 8, 8), np.uint8)}, "'images' holds 'cam_hihg', expected only"),
        ({"cam_high": np.zeros((8, 8, 3), np.uint8)}, r"'images/cam_high' has shape \(8, 8, 3\)"),
    ],
)
def test_alohas_images_are_checked_by_name(images: dict[str, Any], complaint: str):
    with pytest.raises(RequestError, match=complaint):
        ALOHA.prepare(aloha_request(**images))


def test_alohas_low_camera_is_accepted_and_not_used():
    high = np.full((3, 8, 8), 9, np.uint8)
    plain = ALOHA.prepare(aloha_request(cam_high=high))
    extra = ALOHA.prepare(aloha_request(cam_high=high, cam_low=high))
    np.testing.assert_equal(dataclasses.asdict(extra), dataclasses.asdict(plain))


def test_alohas_images_must_be_a_map():
    with pytest.raises(RequestError, match="'images' is missing or no map"):
        ALOHA.prepare({"state": np.zeros(14), "prompt": "fold"})


def test_a_prompt_that_is_cut_is_warned_of():
    prompt = "x" * 400
    (warning,) = PANDA.prepare(panda_request(prompt=prompt)).warnings
    assert "cut to 200" in warning


def test_a_state_far_from_the_stats_is_warned_of_by_part():
    state = np.zeros(16)
    state[8] = 6.0
    (warning,) = PANDA.prepare(panda_request(**{"observation/state": state})).warnings
    assert "base_position[1] 6" in warning


def test_an_ordinary_request_is_not_warned_of():
    assert PANDA.prepare(panda_request()).warnings == ()


def test_the_prompt_holds_the_padding_only_where_it_is_padded_before():
    before = dataclasses.replace(
        PANDA, stats=make_stats(32, 32), state_padding="before_normalization"
    )
    n_after = PANDA.prepare(panda_request()).token_mask.sum()
    n_before = before.prepare(panda_request()).token_mask.sum()
    assert n_before == n_after + len(TOKENIZER.encode(" 128" * 16, bos=False))


@pytest.mark.parametrize(
    ("padding", "mode", "widths"),
    [
        ("after_tokenization", "zscore", (32, 32)),
        ("after_tokenization", "quantile", (32, 32)),
        ("after_tokenization", "zscore", (16, 7)),
        ("before_normalization", "quantile", (16, 12)),
        ("before_normalization", "zscore", (14, 12)),
        ("before_normalization", "zscore", (32, 7)),
        ("before_normalization", "zscore", (33, 32)),
    ],
)
def test_stats_of_another_width_are_refused_and_not_cut_or_padded(
    padding: Any, mode: Any, widths: tuple[int, int]
):
    stats = fit_norm_stats(
        make_stats(*widths),
        robot=PANDA.robot,
        norm_mode=mode,
        state_padding=padding,
        action_dim=32,
    )
    with pytest.raises(NormStatsError, match=rf'stats\.json have .* "{padding}" needs'):
        dataclasses.replace(PANDA, stats=stats, norm_mode=mode, state_padding=padding)


@pytest.mark.parametrize("widths", [(16, 12), (32, 12), (16, 32)])
def test_zscore_stats_of_the_robots_width_are_padded_with_a_note(widths: tuple[int, int]):
    stats = fit_norm_stats(
        make_stats(*widths, quantiles=False),
        robot=PANDA.robot,
        norm_mode="zscore",
        state_padding="before_normalization",
        action_dim=32,
    )
    path = dataclasses.replace(PANDA, stats=stats, state_padding="before_normalization")
    assert len(path.describe()["norm_stats_notes"]) == 2 - widths.count(32)


def test_quantile_mode_needs_quantiles():
    with pytest.raises(NormStatsError, match="no q01 and q99"):
        dataclasses.replace(PANDA, stats=make_stats(16, 12, quantiles=False), norm_mode="quantile")


def test_the_description_tells_every_setting_apart():
    stats = dataclasses.replace(make_stats(16, 12), sha256="1" * 64)
    others = [
        dataclasses.replace(PANDA, norm_mode="quantile"),
        dataclasses.replace(PANDA, stats=stats),
        dataclasses.replace(PANDA, discrete_state_input=False),
        dataclasses.replace(PANDA, max_token_len=48),
        dataclasses.replace(PANDA, action_horizon=10),
        dataclasses.replace(PANDA, stats=make_stats(32, 32), state_padding="before_normalization"),
    ]
    for other in others:
        assert other.describe() != PANDA.describe()
