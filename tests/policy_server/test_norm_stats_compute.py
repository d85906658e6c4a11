"""Norm stats of a dataset are numpy's on the whole of it, though it is read in pieces."""

import json
from collections.abc import Iterator
from pathlib import Path

import hypothesis.extra.numpy as hnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lerobot_files import make_frames, modality, to_lists, write_dataset, write_meta

from policy_server import lerobot_dataset
from policy_server.errors import DatasetError
from policy_server.lerobot_dataset import open_dataset
from policy_server.norm_stats import FieldStats
from policy_server.norm_stats_compute import (
    compute_field_stats,
    moments,
    pad_field,
    quantiles,
    select_ranks,
)
from policy_server.robots import LIBERO, PANDA_OMRON

EPISODE = "data/chunk-000/episode_000002.parquet"


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize(("dtype", "fixed"), [(np.float32, False), (np.float64, True)])
@pytest.mark.parametrize("batch_frames", [7, 65536])
def test_stats_are_numpys_on_all_frames_in_the_policys_order(
    tmp_path, monkeypatch, version, dtype, fixed, batch_frames
):
    monkeypatch.setattr(lerobot_dataset, "BATCH_FRAMES", batch_frames)
    frames = make_frames(dtype)
    dataset = open_dataset(
        write_dataset(tmp_path, frames, version=version, fixed=fixed), PANDA_OMRON
    )

    state, actions = compute_field_stats(dataset)

    for field, rows in zip((state, actions), frames.fields().values(), strict=True):
        np.testing.assert_allclose(field.mean, rows.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(field.std, rows.std(axis=0), rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(
            field.quantiles(), np.quantile(rows, (0.01, 0.99), axis=0), rtol=1e-15
        )
    assert state.std[9] == 0  # base_position's z stood still


def test_no_batch_is_longer_than_its_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(lerobot_dataset, "BATCH_FRAMES", 7)
    frames = make_frames()
    dataset = open_dataset(write_dataset(tmp_path, frames, version="v3.0"), PANDA_OMRON)
    batches = list(dataset.batches())
    assert max(map(len, batches)) == 7
    np.testing.assert_array_equal(np.concatenate(batches)[:, :16], frames.fields()["state"])


def test_an_episode_without_frames_changes_nothing(tmp_path):
    frames = make_frames()
    directory = write_dataset(tmp_path, frames)
    before = compute_field_stats(open_dataset(directory, PANDA_OMRON))
    schema = pq.read_schema(directory / EPISODE)
    pq.write_table(schema.empty_table(), directory / "data/chunk-000/episode_000099.parquet")

    after = compute_field_stats(open_dataset(directory, PANDA_OMRON))

    for one, other in zip(before, after, strict=True):
        np.testing.assert_equal(one.arrays(), other.arrays())


def in_pieces(rows: np.ndarray, n_pieces: int) -> Iterator[np.ndarray]:
    return iter(np.array_split(rows, n_pieces))


def test_mean_and_std_stay_exact_far_from_zero():
    rows = np.random.default_rng(3).normal(0, 1e-3, (1000, 2)) + np.array([1e6, -1e3])
    mean, std = moments(in_pieces(rows, 9))
    exact = rows.astype(np.longdouble)
    np.testing.assert_allclose(mean, exact.mean(axis=0).astype(float), rtol=1e-15)
    np.testing.assert_allclose(std, exact.std(axis=0).astype(float), rtol=1e-12)


FINITE = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 5e-324])


@settings(max_examples=40, deadline=None)
@given(rows=hnp.arrays(np.float64, st.tuples(st.integers(1, 40), st.just(2)), elements=FINITE))
def test_ranks_are_those_of_the_sorted_columns(rows):
    ranks = [0, len(rows) // 3, len(rows) - 1]
    found = select_ranks(lambda: in_pieces(rows, 1 + len(rows) // 4), ranks)
    np.testing.assert_array_equal(found, np.sort(rows, axis=0)[ranks])


@pytest.mark.parametrize("n_rows", [1, 2, 3, 100, 101, 250])
def test_quantiles_are_numpys_for_any_number_of_rows(n_rows):
    rows = np.random.default_rng(n_rows).normal(0, 1, (n_rows, 3))
    at = (0.0, 0.01, 0.5, 0.99, 1.0)
    found = quantiles(lambda: in_pieces(rows, min(3, n_rows)), n_rows, at)
    np.testing.assert_allclose(found, np.quantile(rows, at, axis=0), rtol=0, atol=1e-15)


def test_padding_has_the_statistics_of_zeros_but_a_std_of_one():
    padded = pad_field(FieldStats(*np.arange(8.0).reshape(4, 2)), 4)
    assert padded.mean.tolist() == [0, 1, 0, 0]
    assert padded.std.tolist() == [2, 3, 1, 1]
    assert np.stack(padded.quantiles()).tolist() == [[4, 5, 0, 0], [6, 7, 0, 0]]


def no_info(directory: Path) -> None:
    (directory / "meta" / "info.json").unlink()


def other_version(directory: Path) -> None:
    write_meta(directory, "info.json", {"codebase_version": "v1.6", "total_frames": 9})


def no_frames(directory: Path) -> None:
    write_meta(directory, "info.json", {"codebase_version": "v2.1", "total_frames": 0})


def info_is_a_list(directory: Path) -> None:
    write_meta(directory, "info.json", [])


def layout_of_another_version(directory: Path) -> None:
    write_meta(directory, "info.json", {"codebase_version": "v3.0", "total_frames": 9})


def an_episode_is_missing(directory: Path) -> None:
    (directory / EPISODE).unlink()


def cut_short(directory: Path) -> None:
    path = directory / EPISODE
    path.write_bytes(path.read_bytes()[:-100])


def not_downloaded(directory: Path) -> None:
    (directory / EPISODE).write_text("version https://git-lfs.github.com/spec/v1\n")


def rewrite(directory: Path, **columns: pa.Array) -> None:
    table = pq.read_table(directory / EPISODE)
    kept = {name: table[name] for name in table.column_names}
    changed = {**kept, **{name.replace("__", "."): column for name, column in columns.items()}}
    pq.write_table(
        pa.table({name: column for name, column in changed.items() if column is not None}),
        directory / EPISODE,
    )


def rows_of(directory: Path, name: str) -> np.ndarray:
    return np.stack(pq.read_table(directory / EPISODE)[name].to_numpy())


def without_actions(directory: Path) -> None:
    table = pq.read_table(directory / EPISODE).drop_columns(["action"])
    pq.write_table(table, directory / EPISODE)


def narrow_state(directory: Path) -> None:
    rewrite(directory, observation__state=to_lists(rows_of(directory, "observation.state")[:, :14]))


def one_short_action(directory: Path) -> None:
    rows = rows_of(directory, "action").tolist()
    rows[4] = rows[4][:11]
    rewrite(directory, action=pa.array(rows, pa.list_(pa.float32())))


def one_null_action(directory: Path) -> None:
    rows = rows_of(directory, "action").tolist()
    rows[4] = None
    rewrite(directory, action=pa.array(rows, pa.list_(pa.float32(), 12)))


def a_null_number(directory: Path) -> None:
    rows = rows_of(directory, "action").tolist()
    rows[4][3] = None
    rewrite(directory, action=pa.array(rows, pa.list_(pa.float32())))


def nan_state(directory: Path) -> None:
    rows = rows_of(directory, "observation.state").copy()
    rows[4, 5] = np.nan
    rewrite(directory, observation__state=to_lists(rows))


def scalar_actions(directory: Path) -> None:
    rewrite(directory, action=pa.array(rows_of(directory, "action")[:, 0]))


def texts_for_actions(directory: Path) -> None:
    rows = rows_of(directory, "action").astype(str).tolist()
    rewrite(directory, action=pa.array(rows))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (no_info, r"is no LeRobot dataset, .*info\.json cannot be read; .*--from"),
        (info_is_a_list, "codebase_version None and total_frames None, expected v2.x or v3.x"),
        (other_version, "codebase_version 'v1.6'"),
        (no_frames, "total_frames 0, expected .* at least one frame"),
        (layout_of_another_version, r"of v3\.0 has no file data/chunk-\*/file-\*\.parquet"),
        (an_episode_is_missing, r"frames and its meta/info\.json says \d+; is it there as a whole"),
        (cut_short, r"episode_000002\.parquet is damaged or was not downloaded"),
        (not_downloaded, r"episode_000002\.parquet is damaged or was not downloaded"),
        (without_actions, r"episode_000002\.parquet has no column action"),
        (narrow_state, "column observation.state .* not a list of 16 numbers"),
        (one_short_action, "column action .* not a list of 12 numbers"),
        (one_null_action, "column action .* not a list of 12 numbers"),
        (a_null_number, "column action .* not a list of 12 numbers"),
        (nan_state, "column observation.state .* has nan as number 5 of a frame"),
        (scalar_actions, "column action .* holds float, expected lists of floats"),
        (texts_for_actions, "column action .* holds list<.*string>, expected lists of floats"),
    ],
)
def test_a_bad_dataset_is_one_sentence(tmp_path, damage, complaint):
    directory = write_dataset(tmp_path, make_frames())
    damage(directory)
    with pytest.raises(DatasetError, match=complaint) as refusal:
        compute_field_stats(open_dataset(directory, PANDA_OMRON))
    message = str(refusal.value)
    assert message.endswith((".", "?"))
    assert "\n" not in message


def changed(section: str, name: str, **changes) -> dict:
    document = modality()
    document[section][name].update(changes)
    return document


def renamed(section: str, name: str, new: str) -> dict:
    document = modality()
    document[section][new] = document[section].pop(name)
    return document


def without(section: str, name: str) -> dict:
    document = modality()
    del document[section][name]
    return document


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        (None, r"modality\.json cannot be read .*--modality"),
        ("{", r"modality\.json is not JSON"),
        ([], "has no object 'state'"),
        ({"state": modality()["state"]}, "has no object 'action'"),
        (without("state", "gripper_qpos"), "'state' lacks 'gripper_qpos'"),
        (renamed("action", "gripper_close", "gripper"), "'action' lacks 'gripper_close'"),
        (
            {**modality(), "state": {**modality()["state"], "joints": {"start": 16, "end": 23}}},
            "'state' has the unknown 'joints'",
        ),
        (
            changed("state", "gripper_qpos", start=15, end=17),
            "'state' leaves out the numbers 14 to",
        ),
        (
            changed("state", "base_position", start=3, end=6),
            "'state' leaves out the numbers 0 to 2",
        ),
        (
            changed("action", "control_mode", start=3, end=4),
            "'action' uses twice the numbers 3 to 3",
        ),
        (
            changed("state", "base_position", end=4),
            "'state.base_position' has 4 numbers, expected 3",
        ),
        (changed("state", "base_position", start=-3, end=0), "no start and end of integers"),
        (changed("state", "base_position", start=0.0), "no start and end of integers"),
        (changed("state", "base_position", original_key="observation.base"), "of column 'observ"),
    ],
)
def test_a_dataset_whose_order_cannot_be_told_is_refused(tmp_path, document, complaint):
    directory = write_dataset(tmp_path, make_frames())
    path = directory / "meta" / "modality.json"
    path.unlink()
    if document is not None:
        path.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(DatasetError, match=complaint) as refusal:
        open_dataset(directory, PANDA_OMRON)
    assert str(path) in str(refusal.value)


def test_a_dataset_in_another_order_is_read_by_its_names(tmp_path):
    frames = make_frames()
    directory = write_dataset(tmp_path, frames)
    swapped = modality()
    swapped["state"]["base_position"].update(start=4, end=7)
    swapped["state"]["base_rotation"].update(start=0, end=4)
    write_meta(directory, "modality.json", swapped)

    state, _ = compute_field_stats(open_dataset(directory, PANDA_OMRON))

    in_file = np.concatenate(frames.states).astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(state.mean[7:14], in_file[[4, 5, 6, 0, 1, 2, 3]], rtol=1e-12)


def test_the_names_may_come_from_a_file_elsewhere(tmp_path):
    directory = write_dataset(tmp_path, make_frames())
    elsewhere = (directory / "meta" / "modality.json").rename(tmp_path / "PandaOmron_modality.json")
    dataset = open_dataset(directory, PANDA_OMRON, elsewhere)
    assert dataset.order.actions[:3] == (5, 6, 7)


def test_a_robot_whose_part_names_are_not_known_is_refused(tmp_path):
    with pytest.raises(
        DatasetError, match=r"'libero' in datasets are not known, only .*panda_omron"
    ):
        open_dataset(write_dataset(tmp_path, make_frames()), LIBERO)
