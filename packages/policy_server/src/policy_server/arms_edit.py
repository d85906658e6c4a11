"""Writes pins into a row of the table of arms, and leaves every other byte as it was."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from policy_server.errors import ConfigError


def set_in_row(arms_file: Path, arm: str, values: Mapping[str, str]) -> None:
    """Set keys of a row in place; the file is replaced in one step.

    Args:
        arms_file: A table of arms that `load_arms` accepts.
        arm: Name of the row.
        values: New strings by key, such as pins; no quotes or backslashes in them.

    Raises:
        ConfigError: The row is written in a way that cannot be edited line by line, or the file
            cannot be written.
    """
    text = arms_file.read_bytes().decode()  # with its own ends of lines
    expected = tomllib.loads(text)
    expected["arms"][arm].update(values)
    edited = _edit(text, arm, values)
    if not _means(edited, expected):
        wanted = ", ".join(f'{key} = "{value}"' for key, value in values.items())
        raise ConfigError(
            f"the row of arm {arm!r} in {arms_file} does not start with [arms.{arm}] and hold one "
            f"key per line, so it cannot be edited; write {wanted} there by hand."
        )
    target = arms_file.resolve()  # a link stays a link
    new = target.with_name(f".{target.name}.new")
    try:
        new.write_bytes(edited.encode())
        new.chmod(target.stat().st_mode)
        new.replace(target)
    except OSError as error:
        raise ConfigError(
            f"the table of arms {arms_file} cannot be written ({error.strerror}); make it and its "
            "folder writable, or edit a copy with --arms-file."
        ) from error


def _edit(text: str, arm: str, values: Mapping[str, str]) -> str:
    """The text with these keys set, or any other text if the row cannot be found."""
    lines = text.split("\n")
    header = re.compile(rf"""\s*\[\s*arms\s*\.\s*(["']?){re.escape(arm)}\1\s*\]\s*(#.*)?""")
    start = next((n for n, line in enumerate(lines) if header.fullmatch(line)), len(lines))
    following = (n for n in range(start + 1, len(lines)) if lines[n].lstrip().startswith("["))
    end = next(following, len(lines))
    head, row, tail = lines[: start + 1], lines[start + 1 : end], lines[end:]
    for key, value in values.items():
        row = _set_key(row, key, value)
    return "\n".join([*head, *row, *tail])


def _set_key(row: list[str], key: str, value: str) -> list[str]:
    """Change the line of a key and keep its comment, or add one after the row's last line."""
    line_of_key = re.compile(rf"""(\s*{key}\s*=\s*)("[^"\\]*"|'[^']*')(.*)""")
    for number, line in enumerate(row):
        if found := line_of_key.fullmatch(line):
            return [*row[:number], f'{found[1]}"{value}"{found[3]}', *row[number + 1 :]]
    blank = (not line.strip() or line.lstrip().startswith("#") for line in reversed(row))
    last = len(row) - next((n for n, is_blank in enumerate(blank) if not is_blank), len(row))
    return [*row[:last], f'{key} = "{value}"', *row[last:]]


def _means(text: str, expected: Mapping[str, object]) -> bool:
    try:
        return tomllib.loads(text) == expected
    except tomllib.TOMLDecodeError:
        return False
