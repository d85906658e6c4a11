"""What a start refuses before any weight is read, and the sentence that says how to mend it."""

import hashlib
import re
import shutil
from pathlib import Path

import pytest
from served_arm import CHECKPOINT, TOKENIZER, options, write_arms, write_norm_stats

from policy_server.errors import CheckpointError, ConfigError, NormStatsError, TokenizerError
from policy_server.plan import make_plan

OTHER_PIN = "0" * 64
STATS = Path("mine") / "norm_stats.json"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def pinned(folder: Path, **changes) -> Path:
    """A table whose arm is one of real weights, with both pins."""
    write_norm_stats(folder / STATS)
    pins = {"norm_stats_sha256": sha256(folder / STATS), "checkpoint_digest": OTHER_PIN}
    return write_arms(folder, **{"params": "raw", **pins, **changes})


def test_an_arm_that_is_all_there_becomes_a_plan(tmp_path):
    plan = make_plan(options(write_arms(tmp_path)))
    assert (plan.arm.name, plan.checkpoint_dir) == ("mine", CHECKPOINT)
    assert (plan.norm_stats_path, plan.tokenizer_path) == (tmp_path / STATS, TOKENIZER)
    assert (plan.params_kind, plan.deviations) == ("unknown", ())


def test_an_unknown_arm_names_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'mine'"):
        make_plan(options(write_arms(tmp_path), arm="mien"))


def test_a_checkpoint_is_looked_up_under_the_checkpoints_root(tmp_path):
    (tmp_path / "root" / "weights").mkdir(parents=True)
    table = write_arms(tmp_path, checkpoint="weights")
    plan = make_plan(options(table, checkpoints_root=tmp_path / "root"))
    assert plan.checkpoint_dir == tmp_path / "root" / "weights"


def test_the_flag_for_the_directory_goes_before_the_row(tmp_path):
    table = write_arms(tmp_path, checkpoint="absent")
    assert make_plan(options(table, dir=CHECKPOINT)).checkpoint_dir == CHECKPOINT


def test_a_missing_checkpoint_names_directory_flags_and_variable(tmp_path):
    table = write_arms(tmp_path, checkpoint="absent")
    with pytest.raises(CheckpointError) as caught:
        make_plan(options(table, checkpoints_root=tmp_path))
    for word in (str(tmp_path / "absent"), "--policy.dir", "--policy.checkpoints-root", "$PI05_"):
        assert word in str(caught.value)


def test_an_arm_without_a_checkpoint_needs_the_flag(tmp_path):
    with pytest.raises(CheckpointError, match=r"names no checkpoint; .*--policy\.dir"):
        make_plan(options(write_arms(tmp_path, checkpoint="")))


@pytest.mark.parametrize("missing", ["norm_stats_sha256", "checkpoint_digest"])
@pytest.mark.parametrize("params", ["raw", "ema"])
def test_real_weights_are_not_served_unpinned(tmp_path, params, missing):
    table = pinned(tmp_path, params=params, **{missing: ""})
    with pytest.raises(ConfigError, match=rf"unpinned: \[arms\.mine\] in .* lacks {missing}, "):
        make_plan(options(table))


def test_real_weights_are_not_served_unpinned_by_allowing_deviations(tmp_path):
    table = write_arms(tmp_path, params="raw")
    with pytest.raises(ConfigError, match="norm_stats_sha256 and checkpoint_digest"):
        make_plan(options(table, allow_protocol_deviation=True))


def test_a_pin_vouches_for_the_weights_of_a_directory_that_does_not_tell(tmp_path):
    assert make_plan(options(pinned(tmp_path))).params_kind == "raw"


def test_stats_that_are_not_the_pinned_ones_are_refused(tmp_path):
    table = pinned(tmp_path)
    write_norm_stats(tmp_path / STATS, scale=2.0)
    with pytest.raises(NormStatsError, match=r"is pinned to .*norm_stats_sha256"):
        make_plan(options(table))


def test_missing_stats_name_the_file_and_the_row(tmp_path):
    table = write_arms(tmp_path, norm_stats="absent/norm_stats.json")
    with pytest.raises(NormStatsError, match=r"absent/norm_stats\.json of arm 'mine' .*arms\.toml"):
        make_plan(options(table))


REFUSED = "robocasa365_human300"


def refused_by_folder(folder: Path) -> dict:
    write_norm_stats(folder / REFUSED / "norm_stats.json")
    return {"norm_stats": f"{REFUSED}/norm_stats.json"}


def refused_by_link(folder: Path) -> dict:
    refused_by_folder(folder)
    (folder / "linked.json").symlink_to(folder / REFUSED / "norm_stats.json")
    return {"norm_stats": "linked.json"}


def refused_by_source(folder: Path) -> dict:
    (folder / "mine").mkdir(exist_ok=True)
    (folder / "mine" / "SOURCE.md").write_text(f"Copied from assets/{REFUSED}.\n")
    return {}


def refused_by_digest(folder: Path) -> dict:
    write_norm_stats(folder / STATS)
    return {"refused_assets": [REFUSED, sha256(folder / STATS)]}


@pytest.mark.parametrize(
    "arrange", [refused_by_folder, refused_by_link, refused_by_source, refused_by_digest]
)
@pytest.mark.parametrize("allowed", [False, True])
def test_stats_of_a_refused_asset_are_refused_whatever_the_flags(tmp_path, arrange, allowed):
    table = write_arms(tmp_path, **{"refused_assets": [REFUSED], **arrange(tmp_path)})
    with pytest.raises(NormStatsError, match="must never be served with"):
        make_plan(options(table, allow_protocol_deviation=allowed))


def test_stats_of_the_flag_are_refused_like_those_of_the_row(tmp_path):
    other = tmp_path / REFUSED
    write_norm_stats(other / "norm_stats.json")
    table = write_arms(tmp_path, refused_assets=[REFUSED])
    changes = {"norm_stats": other / "norm_stats.json", "allow_protocol_deviation": True}
    with pytest.raises(NormStatsError, match=f"are those of '{REFUSED}'"):
        make_plan(options(table, **changes))


DEVIATIONS = [
    ({"norm_mode": "zscore"}, "norm_mode zscore instead of quantile"),
    ({"action_horizon": 10}, "action_horizon 10 instead of 50"),
]


@pytest.mark.parametrize(("change", "words"), DEVIATIONS)
def test_serving_an_arm_otherwise_is_refused(tmp_path, change, words):
    with pytest.raises(ConfigError, match=rf"{words}; .*--policy\.allow-protocol-deviation"):
        make_plan(options(write_arms(tmp_path), **change))


@pytest.mark.parametrize(("change", "words"), DEVIATIONS)
def test_serving_an_arm_otherwise_is_marked_where_it_is_allowed(tmp_path, change, words):
    plan = make_plan(options(write_arms(tmp_path), allow_protocol_deviation=True, **change))
    assert plan.deviations == (words,)
    for key, value in change.items():
        assert getattr(plan.arm, key) == value


def test_a_flag_that_repeats_the_row_is_no_deviation(tmp_path):
    table = write_arms(tmp_path)
    (tmp_path / "copy").mkdir()
    copied = Path(shutil.copy(tmp_path / STATS, tmp_path / "copy" / "norm_stats.json"))
    changes = {"norm_mode": "quantile", "action_horizon": 50, "norm_stats": copied}
    assert make_plan(options(table, **changes)).deviations == ()


@pytest.mark.parametrize("arrange", [write_arms, pinned])
def test_other_stats_are_a_deviation_by_their_digest(tmp_path, arrange):
    table = arrange(tmp_path)
    other = tmp_path / "other" / "norm_stats.json"
    write_norm_stats(other, scale=2.0)
    with pytest.raises(ConfigError, match=r"norm_stats .* instead of"):
        make_plan(options(table, norm_stats=other))
    plan = make_plan(options(table, norm_stats=other, allow_protocol_deviation=True))
    expected = f"norm_stats {sha256(other)} instead of {sha256(tmp_path / STATS)}"
    assert plan.deviations == (expected,)
    assert plan.norm_stats_path == other


@pytest.mark.parametrize("horizon", [0, 4])
def test_a_horizon_that_cannot_be_is_refused_by_its_flag(tmp_path, horizon):
    changes = {"action_horizon": horizon, "allow_protocol_deviation": True}
    with pytest.raises(ConfigError, match=r"--policy\.action-horizon: "):
        make_plan(options(write_arms(tmp_path), **changes))


def test_a_wrong_tokenizer_path_names_the_flag(tmp_path):
    with pytest.raises(TokenizerError, match=r"absent\.model .*--policy\.tokenizer"):
        make_plan(options(write_arms(tmp_path), tokenizer=tmp_path / "absent.model"))


def test_the_rows_tokenizer_lies_beside_the_table(tmp_path):
    shutil.copy(TOKENIZER, tmp_path / "mine.model")
    table = write_arms(tmp_path, tokenizer="mine.model", tokenizer_sha256=sha256(TOKENIZER))
    assert make_plan(options(table)).tokenizer_path == tmp_path / "mine.model"


def test_another_tokenizer_than_the_pinned_one_is_refused(tmp_path):
    table = write_arms(tmp_path, tokenizer_sha256=OTHER_PIN)
    with pytest.raises(TokenizerError, match=rf"pinned to {OTHER_PIN}; .*--policy\.tokenizer"):
        make_plan(options(table, tokenizer=TOKENIZER))


def test_a_negative_seed_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--policy\.seed -1 is negative"):
        make_plan(options(write_arms(tmp_path), seed=-1))


def test_every_refusal_is_one_line(tmp_path):
    table = write_arms(tmp_path, params="raw")
    with pytest.raises(ConfigError) as caught:
        make_plan(options(table))
    assert re.fullmatch(r"[^\n]+\.", str(caught.value))
