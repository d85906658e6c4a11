"""Pins are written into the row they belong to, and nothing else of the file changes."""

import tomllib
from pathlib import Path

import pytest

from policy_server.arms_edit import set_in_row
from policy_server.errors import ConfigError

TABLE = """\
# my arms
[arms.first]   # the first
checkpoint = "a"
checkpoint_digest = ""  # still to be pinned
refused_assets = [
  "x",
]

# the second one
[arms.'second']
checkpoint_digest = 'old'
checkpoint = "b"
# the end
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "arms.toml"
    path.write_text(TABLE)
    return path


def test_only_the_value_of_the_key_in_that_row_changes(table):
    set_in_row(table, "first", {"checkpoint_digest": "abc"})
    assert table.read_text() == TABLE.replace('digest = ""', 'digest = "abc"')
    set_in_row(table, "second", {"checkpoint_digest": "def"})
    assert table.read_text() == TABLE.replace('= ""', '= "abc"').replace("'old'", '"def"')


def test_a_missing_key_is_added_behind_the_rows_last_one(table):
    set_in_row(table, "first", {"norm_stats_sha256": "abc"})
    set_in_row(table, "second", {"params": "raw"})
    added = TABLE.replace("]\n\n# the second", ']\nnorm_stats_sha256 = "abc"\n\n# the second')
    assert table.read_text() == added.replace('"b"\n', '"b"\nparams = "raw"\n')


@pytest.mark.parametrize("end", ["", "\r\n"])
def test_ends_of_lines_stay_as_they_are(table, end):
    table.write_bytes(f'[arms.first]\r\nparams = "raw"{end}'.encode())
    set_in_row(table, "first", {"params": "ema"})
    assert table.read_bytes() == f'[arms.first]\r\nparams = "ema"{end}'.encode()


@pytest.mark.parametrize(
    "text",
    [
        'arms = { first = { params = "raw" } }',
        'arms.first.params = "raw"',
        '[arms]\nfirst.params = "raw"\n',
        '[arms.first]\n"params" = "raw"\n',
        '[arms.first]\nparams = """raw"""\n',
    ],
)
def test_a_row_written_otherwise_is_left_alone_and_the_line_to_write_is_named(table, text):
    table.write_text(text)
    tomllib.loads(text)
    with pytest.raises(ConfigError, match=r'write params = "ema" there by hand\.$'):
        set_in_row(table, "first", {"params": "ema"})
    assert table.read_text() == text


def test_a_linked_table_stays_a_link_and_no_other_file_is_left(table, tmp_path):
    link = tmp_path / "elsewhere" / "linked.toml"
    link.parent.mkdir()
    link.symlink_to(table)
    set_in_row(link, "second", {"checkpoint": "c"})
    assert link.is_symlink()
    assert table.read_text() == TABLE.replace('"b"', '"c"')
    assert sorted(path.name for path in tmp_path.iterdir()) == ["arms.toml", "elsewhere"]
