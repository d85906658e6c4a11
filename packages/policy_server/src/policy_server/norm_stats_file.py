"""openpi's file of norm stats: read with every oddity refused, and written.

Source: openpi src/openpi/shared/normalize.py (15a9616).
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from policy_server.errors import NormStatsError
from policy_server.norm_stats import FIELDS, MOMENTS, QUANTILES, FieldStats, NormStats


def load_norm_stats(path: Path) -> NormStats:
    """Read a file of openpi's schema: norm_stats.{state,actions}.{mean,std,q01,q99}.

    The quantiles may be null or absent, both or neither. The numbers become float64, as in openpi.

    Raises:
        NormStatsError: The file cannot be read, is not of that schema or holds impossible numbers;
            one sentence that names the file, the field and the statistic.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise NormStatsError(
            f"the norm stats {path} cannot be read ({error.strerror}); give a file with "
            "--policy.norm-stats."
        ) from error
    return parse_norm_stats(content, str(path))


def parse_norm_stats(content: bytes, source: str) -> NormStats:
    """Read the bytes of such a file.

    Args:
        content: JSON.
        source: Where they are from.

    Raises:
        NormStatsError: They are not of that schema or hold impossible numbers.
    """
    try:
        document = json.loads(content)
    except ValueError as error:
        raise NormStatsError(f"the norm stats {source} are not JSON: {error}.") from error
    fields = document.get("norm_stats") if isinstance(document, dict) else None
    if not isinstance(fields, dict):
        raise NormStatsError(
            f"the norm stats {source} have no object 'norm_stats' at the top, expected openpi's "
            "schema; bring another format in with `policy-server norm-stats import`."
        )
    if len(document) > 1:
        raise NormStatsError(
            f"the norm stats {source} hold {sorted(set(document) - {'norm_stats'})} beside "
            "'norm_stats', expected nothing else."
        )
    if set(fields) != set(FIELDS):
        raise NormStatsError(
            f"the norm stats {source} have the fields {sorted(fields)}, expected 'actions' and "
            "'state'."
        )
    try:
        return NormStats(
            state=parse_field("state", fields["state"]),
            actions=parse_field("actions", fields["actions"]),
            sha256=hashlib.sha256(content).hexdigest(),
            source=source,
        )
    except NormStatsError as error:
        raise NormStatsError(f"the norm stats {source}: {error}.") from error


def parse_field(name: str, field: Any) -> FieldStats:  # a value of JSON, of any type
    """Read one signal's statistics; the errors are clauses that name the signal.

    Raises:
        NormStatsError: It has other keys than those four, or impossible numbers.
    """
    if not isinstance(field, dict):
        raise NormStatsError(f"{name!r} is no object of mean, std, q01 and q99")
    unknown = sorted(set(field) - {*MOMENTS, *QUANTILES})
    if unknown:
        raise NormStatsError(f"{name!r} holds {unknown}, expected mean, std, q01 and q99")
    arrays = {}
    for key in (*MOMENTS, *QUANTILES):
        values = field.get(key)
        if values is None and key in QUANTILES:
            continue
        if not isinstance(values, list) or not values or not all(map(_is_number, values)):
            raise NormStatsError(f"{name}.{key} is missing or no list of numbers")
        try:
            arrays[key] = np.array(values, dtype=np.float64)
        except OverflowError as error:
            raise NormStatsError(f"{name}.{key} holds a number beyond float64") from error
    try:
        return FieldStats(**arrays)
    except NormStatsError as error:
        raise NormStatsError(f"{name}: {error}") from error


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def encode_norm_stats(state: FieldStats, actions: FieldStats) -> bytes:
    """The bytes of a file that `parse_norm_stats` reads the same numbers from."""
    fields = {
        name: {key: values.tolist() for key, values in field.arrays().items()}
        for name, field in zip(FIELDS, (state, actions), strict=True)
    }
    return (json.dumps({"norm_stats": fields}, indent=2) + "\n").encode()
