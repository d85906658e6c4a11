"""`norm-stats import`: an arm's stats are the right ones, in the right order, or are refused."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot_files import (
    ACTION_ORDER,
    STATE_ORDER,
    dataset_stats,
    make_frames,
    modality,
    write_meta,
)
from served_arm import options, write_arms, write_norm_stats
from test_plan import OTHER_PIN, pinned

from policy_server.arms import load_arms
from policy_server.config import NormStatsImport, parse_command
from policy_server.errors import ConfigError, DatasetError, NormStatsError
from policy_server.norm_stats_file import load_norm_stats
from policy_server.norm_stats_import import Imported, import_norm_stats
from policy_server.plan import make_plan

STATS = "mine/norm_stats.json"
REFUSED = "robocasa365_human300"
STILL = ("state.base_position.2", "actions.base_motion.3")  # in `make_frames`


def bring_in(table: Path, source: Path, *words: str, arm: str = "mine") -> Imported:
    """Type the command."""
    flags = ["--arm", arm, "--from", str(source), "--arms-file", str(table), *words]
    command = parse_command(["norm-stats", "import", *flags])
    assert isinstance(command, NormStatsImport)
    return import_norm_stats(command)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def table_without_stats(folder: Path, **changes: Any) -> Path:
    """A row of real weights whose stats are still to come."""
    table = pinned(folder, **{"norm_stats_sha256": "", **changes})
    shutil.rmtree(folder / "mine")
    return table


@pytest.fixture
def openpi_file(tmp_path: Path) -> Path:
    """The recorded stats, quantiles and 32 wide, in a folder of openpi's kind."""
    path = tmp_path / "ctc502_qnorm" / "norm_stats.json"
    write_norm_stats(path)
    return path


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """The `meta` of a dataset in RoboCasa's order, without data."""
    directory = tmp_path / "ctc502_demonstrations"
    write_meta(directory, "stats.json", dataset_stats(make_frames()))
    write_meta(directory, "modality.json", modality())
    return directory


def test_openpis_file_is_kept_byte_for_byte_and_one_line_pins_it(tmp_path, openpi_file):
    table = table_without_stats(tmp_path)
    before = table.read_text()
    with pytest.raises(ConfigError, match="norm_stats"):
        make_plan(options(table))

    done = bring_in(table, openpi_file)

    written = tmp_path / STATS
    assert (done.file, done.sha256) == (written, sha256(openpi_file))
    assert written.read_bytes() == openpi_file.read_bytes()
    assert table.read_text() == before.replace(
        'norm_stats_sha256 = ""', f'norm_stats_sha256 = "{done.sha256}"'
    )
    assert make_plan(options(table)).norm_stats_path == written
    assert sorted(path.name for path in written.parent.iterdir()) == [
        "SOURCE.md",
        "norm_stats.json",
    ]


def test_source_md_says_where_the_stats_are_from(tmp_path, openpi_file):
    bring_in(table_without_stats(tmp_path), openpi_file)
    source = (tmp_path / "mine" / "SOURCE.md").read_text()
    for part in (
        "# ctc502_qnorm\n",
        "for arm `mine`",
        f"file: `{openpi_file}`, SHA-256 {sha256(openpi_file)}",
        "asset: ctc502_qnorm",
        f"norm_stats.json: SHA-256 {sha256(openpi_file)}",
        "kept byte for byte",
    ):
        assert part in source


def test_the_asset_may_be_named(tmp_path, openpi_file):
    bring_in(table_without_stats(tmp_path), openpi_file, "--asset", "ours")
    assert "- asset: ours\n" in (tmp_path / "mine" / "SOURCE.md").read_text()


@pytest.mark.parametrize("given", ["", "meta/stats.json"])
def test_a_datasets_stats_are_put_into_the_policys_order_and_padded_as_the_fork_does(
    tmp_path, dataset, given
):
    table = table_without_stats(tmp_path, norm_mode="zscore")

    done = bring_in(table, dataset / given, "--allow-constant", *STILL)

    stats = load_norm_stats(done.file)
    in_file = dataset_stats(make_frames())
    for field, column, order in (
        (stats.state, "observation.state", STATE_ORDER),
        (stats.actions, "action", ACTION_ORDER),
    ):
        missing = 32 - len(order)
        mean, std = (np.array(in_file[column][key])[order] for key in ("mean", "std"))
        np.testing.assert_array_equal(field.mean, np.append(mean, np.zeros(missing)))
        np.testing.assert_array_equal(field.std, np.append(std, np.ones(missing)))
        assert field.q01 is None
    assert load_arms(table)["mine"].norm_stats_sha256 == stats.sha256
    source = (tmp_path / "mine" / "SOURCE.md").read_text()
    for part in (
        "# ctc502_demonstrations\n",
        f"SHA-256 {sha256(dataset / 'meta' / 'stats.json')}",
        f"SHA-256 {stats.sha256}",
        "state in the policy's order: numbers 7 8 9 10 11 12 13 0 1 2 3 4 5 6 14 15 of the dataset",
        "actions in the policy's order: numbers 5 6 7 8 9 10 11 0 1 2 3 4 of the dataset",
        "state stats padded from 16 to 32 numbers with mean 0 and std 1",
        "actions stats padded from 12 to 32 numbers with mean 0 and std 1",
        "the dataset's q01 and q99 left out",
        "constant in the training, allowed: state.base_position.2 actions.base_motion.3",
    ):
        assert part in source


@pytest.mark.parametrize("mode", ["zscore", "quantile"])
def test_an_arm_that_pads_after_the_prompt_keeps_the_datasets_quantiles_and_widths(
    tmp_path, dataset, mode
):
    table = table_without_stats(tmp_path, norm_mode=mode, state_padding="after_tokenization")

    done = bring_in(table, dataset, "--allow-constant", *STILL)

    stats = load_norm_stats(done.file)
    in_file = dataset_stats(make_frames())
    for key in ("mean", "std", "q01", "q99"):
        np.testing.assert_array_equal(
            stats.state.arrays()[key], np.array(in_file["observation.state"][key])[STATE_ORDER]
        )
        np.testing.assert_array_equal(
            stats.actions.arrays()[key], np.array(in_file["action"][key])[ACTION_ORDER]
        )
    assert not any("padded" in change or "left out" in change for change in done.changes)


def test_a_dataset_without_quantiles_is_said_to_have_lost_none(tmp_path, dataset):
    write_meta(dataset, "stats.json", dataset_stats(make_frames(), quantiles=False))
    table = table_without_stats(tmp_path, norm_mode="zscore")
    done = bring_in(table, dataset, "--allow-constant", *STILL)
    assert not any("left out" in change for change in done.changes)


def test_a_narrow_zscore_file_is_kept_and_its_padding_at_the_start_is_recorded(tmp_path):
    narrow = tmp_path / "narrow.json"
    rows = {"state": [1.0] * 16, "actions": [1.0] * 12}
    fields = {name: {"mean": ones, "std": ones} for name, ones in rows.items()}
    narrow.write_text(json.dumps({"norm_stats": fields}))

    done = bring_in(table_without_stats(tmp_path, norm_mode="zscore"), narrow)

    assert done.file.read_bytes() == narrow.read_bytes()
    source = (tmp_path / "mine" / "SOURCE.md").read_text()
    assert "at every start: state stats padded from 16 to 32" in source


def test_a_modality_file_elsewhere_tells_the_order(tmp_path, dataset):
    elsewhere = (dataset / "meta" / "modality.json").rename(tmp_path / "PandaOmron_modality.json")
    table = table_without_stats(tmp_path, norm_mode="zscore")
    with pytest.raises(DatasetError, match=r"order .* is not known, .*--modality"):
        bring_in(table, dataset)
    words = ("--modality", str(elsewhere), "--allow-constant", *STILL)
    assert load_norm_stats(bring_in(table, dataset, *words).file).state.width == 32


def test_a_modality_file_that_says_something_else_is_refused(tmp_path, dataset):
    wrong = modality()
    wrong["state"]["base_position"].update(start=1, end=4)
    write_meta(dataset, "modality.json", wrong)
    with pytest.raises(DatasetError, match="does not tell the order of 'panda_omron'"):
        bring_in(table_without_stats(tmp_path, norm_mode="zscore"), dataset)


def test_a_modality_file_for_openpis_stats_is_refused(tmp_path, openpi_file, dataset):
    words = ("--modality", str(dataset / "meta" / "modality.json"))
    with pytest.raises(NormStatsError, match="--modality is for the stats of a dataset"):
        bring_in(table_without_stats(tmp_path), openpi_file, *words)


def edited(**changes: Any) -> Any:
    """Statistics of the state that differ in what is named; None leaves one out."""

    def edit(document: dict) -> None:
        state = document["norm_stats"]["state"]
        for key, value in changes.items():
            if value is None:
                del state[key]
            else:
                state[key] = value(state[key]) if callable(value) else value

    return edit


def first(value: float) -> Any:
    return lambda values: [value, *values[1:]]


def add_key(document: dict) -> None:
    document["norm_stats"]["state"]["min"] = [0.0] * 32


def add_signal(document: dict) -> None:
    document["norm_stats"]["gripper"] = document["norm_stats"]["state"]


def add_on_top(document: dict) -> None:
    document["version"] = 2


def drop_quantiles(document: dict) -> None:
    for field in document["norm_stats"].values():
        del field["q01"], field["q99"]


def narrow(document: dict) -> None:
    widths = {"state": 16, "actions": 12}
    for name, field in document["norm_stats"].items():
        field.update({key: values[: widths[name]] for key, values in field.items()})


def bare(document: dict) -> None:
    document.update(document.pop("norm_stats"))


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (edited(mean=first(float("nan"))), "state: mean holds NaN or infinity"),
        (edited(q99=first(float("inf"))), "state: q99 holds NaN or infinity"),
        (edited(std=first(-1.0)), "state: std is negative in dimension 0"),
        (edited(q01=first(1e9)), "state: q01 exceeds q99 in dimension 0"),
        (edited(std=None), "state.std is missing"),
        (edited(std=lambda values: values[1:]), "state: std has 31 numbers and mean 32"),
        (edited(q01=lambda v: v[:3], q99=lambda v: v[:3]), "state: q01 has 3 numbers and mean 32"),
        (edited(q01=None), "one of q01 and q99 is there without the other"),
        (drop_quantiles, r"no q01 and q99 for 'state', .*quantile.* needs; .*--from"),
        (narrow, r"16 numbers for 'state', .*needs 32 \(norm_mode quantile\); .*--from"),
        (add_key, r"'state' holds \['min'\]"),
        (add_signal, "have the fields .*'gripper'"),
        (add_on_top, r"hold \['version'\] beside 'norm_stats'"),
        (bare, "have no object 'norm_stats' at the top"),
    ],
)
def test_bad_stats_are_one_sentence_and_change_nothing(tmp_path, openpi_file, edit, complaint):
    document = json.loads(openpi_file.read_text())
    edit(document)
    openpi_file.write_text(json.dumps(document))
    table = table_without_stats(tmp_path)
    before = table.read_text()

    with pytest.raises(NormStatsError, match=complaint) as refusal:
        bring_in(table, openpi_file)

    assert str(openpi_file) in str(refusal.value)
    assert str(refusal.value).endswith(".")
    assert table.read_text() == before
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("content", ["", "{", "norm_stats: {}", "[]", '"norm_stats"', '{"a": 1}'])
def test_what_is_not_openpis_json_is_refused(tmp_path, content):
    path = tmp_path / "given.json"
    path.write_text(content)
    with pytest.raises(NormStatsError, match=r"given\.json (are not JSON|have no object)"):
        bring_in(table_without_stats(tmp_path), path)


def test_a_missing_file_names_the_flag(tmp_path):
    with pytest.raises(NormStatsError, match=r"absent cannot be read .* with --from"):
        bring_in(table_without_stats(tmp_path), tmp_path / "absent")


@pytest.mark.parametrize(
    ("column", "change", "complaint"),
    [
        ("observation.state", {"std": None}, "'?observation.state.std is missing"),
        ("action", {"mean": [0.0] * 12 + [1.0]}, "action: std has 12 numbers and mean 13"),
        ("action", {"mean": [float("nan")] * 12}, "action: mean holds NaN"),
        (
            "action",
            {key: [1.0] * 14 for key in ("mean", "std", "q01", "q99")},
            "'action' has 14 numbers, its modality file names 12",
        ),
    ],
)
def test_bad_stats_of_a_dataset_are_one_sentence(tmp_path, dataset, column, change, complaint):
    document = dataset_stats(make_frames())
    document[column].update(change)
    path = write_meta(dataset, "stats.json", document)
    with pytest.raises(NormStatsError, match=complaint) as refusal:
        bring_in(table_without_stats(tmp_path, norm_mode="zscore"), dataset)
    assert str(path) in str(refusal.value)


def test_a_datasets_quantiles_are_not_padded_by_guess(tmp_path, dataset):
    with pytest.raises(NormStatsError, match=r"16 numbers .*needs 32 \(norm_mode quantile\)"):
        bring_in(table_without_stats(tmp_path), dataset, "--allow-constant", *STILL)


def test_constants_are_refused_by_name_until_they_are_allowed(tmp_path, dataset):
    table = table_without_stats(tmp_path, norm_mode="zscore")
    with pytest.raises(NormStatsError) as refusal:
        bring_in(table, dataset)
    assert "std is 0" in str(refusal.value)
    assert str(refusal.value).endswith(f"add --allow-constant {' '.join(STILL)}.")
    with pytest.raises(NormStatsError, match=r"for actions\.base_motion\.3, so"):
        bring_in(table, dataset, "--allow-constant", STILL[0])
    assert not (tmp_path / "mine").exists()
    bring_in(table, dataset, "--allow-constant", *STILL)


def test_equal_quantiles_are_constants_of_a_quantile_arm(tmp_path, openpi_file):
    document = json.loads(openpi_file.read_text())
    state = document["norm_stats"]["state"]
    state["q01"][0] = state["q99"][0]
    state["std"][1] = 0.0  # not used by this arm
    openpi_file.write_text(json.dumps(document))
    table = table_without_stats(tmp_path)
    with pytest.raises(NormStatsError, match=r"q01 equals q99 .* for \S+position_relative\.0, so"):
        bring_in(table, openpi_file)


def test_a_constant_in_the_padding_is_none(tmp_path, openpi_file):
    document = json.loads(openpi_file.read_text())
    for key in ("q01", "q99"):
        document["norm_stats"]["state"][key][16] = 0.0
        document["norm_stats"]["actions"][key][12] = 0.0
    openpi_file.write_text(json.dumps(document))
    bring_in(table_without_stats(tmp_path), openpi_file)


def test_allowing_what_is_not_constant_is_refused(tmp_path, openpi_file):
    words = ("--allow-constant", "state.base_position.2")
    with pytest.raises(NormStatsError, match=r"base_position\.2 names nothing .* are: none"):
        bring_in(table_without_stats(tmp_path), openpi_file, *words)


def refused_by_folder(folder: Path, file: Path) -> Path:
    (folder / REFUSED).mkdir()
    return file.rename(folder / REFUSED / "norm_stats.json")


def refused_by_link(folder: Path, file: Path) -> Path:
    (folder / "link.json").symlink_to(refused_by_folder(folder, file))
    return folder / "link.json"


def refused_by_source(folder: Path, file: Path) -> Path:
    (file.parent / "SOURCE.md").write_text(f"Copied from assets/{REFUSED}.\n")
    return file


@pytest.mark.parametrize("arrange", [refused_by_folder, refused_by_link, refused_by_source])
def test_stats_of_a_refused_asset_are_not_brought_in(tmp_path, openpi_file, arrange):
    table = table_without_stats(tmp_path, refused_assets=[REFUSED])
    with pytest.raises(NormStatsError, match=f"are those of '{REFUSED}'"):
        bring_in(table, arrange(tmp_path, openpi_file))
    assert not (tmp_path / "mine").exists()


def test_renamed_stats_of_a_refused_asset_are_known_by_their_digest(tmp_path, openpi_file):
    renamed = openpi_file.rename(tmp_path / "innocent.json")
    table = table_without_stats(tmp_path, refused_assets=[REFUSED, sha256(renamed)])
    with pytest.raises(NormStatsError, match="must never be served with"):
        bring_in(table, renamed)


def test_a_datasets_stats_are_known_by_the_digest_of_their_own_file(tmp_path, dataset):
    refused = [sha256(dataset / "meta" / "stats.json")]
    table = table_without_stats(tmp_path, norm_mode="zscore", refused_assets=refused)
    with pytest.raises(NormStatsError, match="must never be served with"):
        bring_in(table, dataset, "--allow-constant", *STILL)


def test_a_refused_asset_cannot_be_named_or_put_in_its_own_folder(tmp_path, openpi_file):
    table = table_without_stats(tmp_path, refused_assets=[REFUSED])
    with pytest.raises(NormStatsError, match=f"are those of '{REFUSED}'"):
        bring_in(table, openpi_file, "--asset", REFUSED)
    row = {"refused_assets": [REFUSED], "norm_stats": f"{REFUSED}/norm_stats.json"}
    with pytest.raises(NormStatsError, match=f"are those of '{REFUSED}'"):
        bring_in(table_without_stats(tmp_path, **row), openpi_file)


@pytest.mark.parametrize("where", [".", "meta"])
def test_a_dataset_that_says_it_is_a_refused_asset_is_not_brought_in(tmp_path, dataset, where):
    (dataset / where / "SOURCE.md").write_text(f"A copy of {REFUSED}.\n")
    table = table_without_stats(tmp_path, norm_mode="zscore", refused_assets=[REFUSED])
    with pytest.raises(NormStatsError, match=f"are those of '{REFUSED}'"):
        bring_in(table, dataset, "--allow-constant", *STILL)


def test_other_stats_are_replaced_only_where_that_is_asked_for(tmp_path, openpi_file):
    table = table_without_stats(tmp_path)
    bring_in(table, openpi_file)
    other = tmp_path / "other" / "norm_stats.json"
    write_norm_stats(other, scale=2.0)
    before = table.read_text()

    with pytest.raises(NormStatsError, match=r"holds other norm stats .*--replace"):
        bring_in(table, other)

    assert (tmp_path / STATS).read_bytes() == openpi_file.read_bytes()
    assert table.read_text() == before
    bring_in(table, other, "--replace")
    assert (tmp_path / STATS).read_bytes() == other.read_bytes()
    assert (tmp_path / "mine" / "SOURCE.md").read_text().startswith("# other\n")
    assert make_plan(options(table))


def test_a_source_md_without_stats_is_not_overwritten_by_chance(tmp_path, openpi_file):
    table = table_without_stats(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "SOURCE.md").write_text("By hand.\n")
    with pytest.raises(NormStatsError, match=r"SOURCE\.md already; add --replace"):
        bring_in(table, openpi_file)


def test_a_second_arm_of_the_same_stats_is_named_until_it_is_pinned_too(tmp_path, openpi_file):
    table = table_without_stats(tmp_path)
    row = table.read_text()
    table.write_text(row + "\n" + row.replace("[arms.mine]", "[arms.second]"))

    assert bring_in(table, openpi_file).sharing == ("second",)
    note = (tmp_path / "mine" / "SOURCE.md").read_text()
    assert bring_in(table, openpi_file, arm="second").sharing == ()

    assert {arm.norm_stats_sha256 for arm in load_arms(table).values()} == {sha256(openpi_file)}
    assert (tmp_path / "mine" / "SOURCE.md").read_text() == note


def test_stats_that_lie_there_already_are_pinned_with_a_note_beside_them(tmp_path):
    table = write_arms(tmp_path)
    bring_in(table, tmp_path / STATS)
    assert load_arms(table)["mine"].norm_stats_sha256 == sha256(tmp_path / STATS)
    assert "kept byte for byte" in (tmp_path / "mine" / "SOURCE.md").read_text()


def test_a_pin_of_other_stats_gives_way(tmp_path, openpi_file):
    table = table_without_stats(tmp_path, norm_stats_sha256=OTHER_PIN)
    bring_in(table, openpi_file)
    assert load_arms(table)["mine"].norm_stats_sha256 == sha256(openpi_file)


def test_an_unknown_arm_names_the_nearest(tmp_path, openpi_file):
    with pytest.raises(ConfigError, match="did you mean 'mine'"):
        bring_in(write_arms(tmp_path), openpi_file, arm="mien")
