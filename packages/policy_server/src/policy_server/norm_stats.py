"""Norm stats, and the two ways to normalise.

openpi fits stats to a signal: longer stats are cut, shorter ones padded or passed over. Nothing
here does that; widths must be equal, and the one padding that a training line did (RoboCasa's fork
of openpi, z-score) is a function of its own that leaves a note.
"""

import dataclasses
from typing import Literal

import numpy as np
from jaxtyping import Float, Float64

from policy_server.errors import NormStatsError

NormMode = Literal["zscore", "quantile"]
StatePadding = Literal["before_normalization", "after_tokenization"]

EPS = 1e-6  # keeps a constant dimension finite; openpi src/openpi/transforms.py (15a9616)

NORM_STATS_FLAG = "--policy.norm-stats"

FIELDS = ("state", "actions")
MOMENTS = ("mean", "std")
QUANTILES = ("q01", "q99")


@dataclasses.dataclass(frozen=True, eq=False)
class FieldStats:
    """Statistics of one signal, each of shape (d,), in the signal's own units.

    Attributes:
        mean: Mean.
        std: Standard deviation, 0 for a constant dimension.
        q01: 1st percentile; None if the file has no quantiles.
        q99: 99th percentile; None if the file has no quantiles.
    """

    mean: Float64[np.ndarray, " _"]  # one width; the check below says it better than jaxtyping
    std: Float64[np.ndarray, " _"]
    q01: Float64[np.ndarray, " _"] | None = None
    q99: Float64[np.ndarray, " _"] | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be the statistics of one signal."""
        if (self.q01 is None) != (self.q99 is None):
            raise NormStatsError("one of q01 and q99 is there without the other, expected both")
        for name, values in self.arrays().items():
            if values.shape != self.mean.shape:
                raise NormStatsError(
                    f"{name} has {values.size} numbers and mean {self.mean.size}, expected as many"
                )
            if not np.isfinite(values).all():
                raise NormStatsError(f"{name} holds NaN or infinity, expected finite numbers")
        if (self.std < 0).any():
            raise NormStatsError(f"std is negative in dimension {np.argmax(self.std < 0)}")
        if self.q01 is not None and self.q99 is not None and (self.q01 > self.q99).any():
            raise NormStatsError(f"q01 exceeds q99 in dimension {np.argmax(self.q01 > self.q99)}")

    def arrays(self) -> dict[str, Float64[np.ndarray, " _"]]:
        """What there is, by its name in openpi's file."""
        named = {name: getattr(self, name) for name in (*MOMENTS, *QUANTILES)}
        return {name: values for name, values in named.items() if values is not None}

    @property
    def width(self) -> int:
        """How many numbers the signal has."""
        return self.mean.shape[0]

    def check_width(self, width: int) -> None:
        """Refuse a signal of another width, where openpi would cut or pad the stats."""
        if width != self.width:
            raise NormStatsError(
                f"the signal has {width} numbers and its norm stats {self.width}, expected as "
                "many; give the arm's own file with --policy.norm-stats."
            )

    def quantiles(self) -> tuple[Float64[np.ndarray, " d"], Float64[np.ndarray, " d"]]:
        """q01 and q99, or a sentence if the file has none."""
        if self.q01 is None or self.q99 is None:
            raise NormStatsError(
                'there are no q01 and q99, which norm_mode "quantile" needs; give a file with '
                "quantiles with --policy.norm-stats."
            )
        return self.q01, self.q99


@dataclasses.dataclass(frozen=True, eq=False)
class NormStats:
    """The statistics of one file.

    Attributes:
        state: Statistics of the robot's state.
        actions: Statistics of its actions.
        sha256: SHA-256 of the file's bytes.
        source: Where they were read.
        notes: What was done to them since, one sentence each.
    """

    state: FieldStats
    actions: FieldStats
    sha256: str
    source: str
    notes: tuple[str, ...] = ()

    def check_mode(self, mode: NormMode, flag: str = NORM_STATS_FLAG) -> None:
        """Refuse quantile normalisation by a file without quantiles.

        Args:
            mode: How the stats will be used.
            flag: Gives another file.

        Raises:
            NormStatsError: The mode is "quantile" and a field has no q01 and q99.
        """
        for name in FIELDS:
            if mode == "quantile" and getattr(self, name).q01 is None:
                raise NormStatsError(
                    f"the norm stats {self.source} have no q01 and q99 for {name!r}, which "
                    f'norm_mode "quantile" needs; give one that has them with {flag}.'
                )


def pad_zscore(stats: NormStats, width: int) -> NormStats:
    """Widen z-score stats with mean 0 and std 1, as RoboCasa's fork of openpi does.

    The quantiles are dropped: that fork has no rule for them. A field that has the width already
    stays as it is; without any to widen, `stats` itself is returned.

    Args:
        stats: Stats of the robot's own widths.
        width: Width of the model's state and actions.

    Returns:
        New stats, with a note for each field that was widened.

    Raises:
        NormStatsError: A field is wider than `width`.
    """
    padded, notes = {}, []
    for name in FIELDS:
        field: FieldStats = getattr(stats, name)
        if field.width > width:
            raise NormStatsError(
                f"the norm stats {stats.source} have {field.width} numbers for {name!r}, expected "
                f"at most action_dim ({width}); give the arm's own file with --policy.norm-stats."
            )
        if field.width == width:
            continue
        missing = width - field.width
        padded[name] = FieldStats(
            mean=np.append(field.mean, np.zeros(missing)),
            std=np.append(field.std, np.ones(missing)),
        )
        notes.append(
            f"{name} stats padded from {field.width} to {width} numbers with mean 0 and std 1"
        )
    if not notes:
        return stats
    return dataclasses.replace(stats, **padded, notes=(*stats.notes, *notes))


def normalize(
    x: Float[np.ndarray, "*b d"], stats: FieldStats, mode: NormMode
) -> Float64[np.ndarray, "*b d"]:
    """Map [mean, mean + std] to [0, 1], or [q01, q99] to [-1, 1], without clipping.

    Args:
        x: Raw signal, shape (*b, d), in the units of `stats`.
        stats: Statistics of the same signal.
        mode: Which of the two.

    Returns:
        A new array, dimensionless. A constant dimension is divided by EPS.

    Raises:
        NormStatsError: The widths differ (openpi cuts longer stats instead and lets NumPy fail on
            shorter ones), or there are no quantiles.

    Source:
        openpi src/openpi/transforms.py, Normalize (15a9616).
    """
    stats.check_width(x.shape[-1])
    if mode == "zscore":
        return (x - stats.mean) / (stats.std + EPS)
    q01, q99 = stats.quantiles()
    return (x - q01) / (q99 - q01 + EPS) * 2.0 - 1.0


def unnormalize(
    x: Float[np.ndarray, "*b d"], stats: FieldStats, mode: NormMode
) -> Float64[np.ndarray, "*b d"]:
    """Undo `normalize`.

    Args:
        x: Normalised signal, shape (*b, d), dimensionless.
        stats: Statistics of the same signal.
        mode: Which of the two ways it was normalised in.

    Returns:
        A new array, in the units of `stats`.

    Raises:
        NormStatsError: The widths differ (openpi pads shorter z-score stats with mean 0 and std 1,
            passes numbers beyond shorter quantiles through, and lets NumPy fail on longer ones), or
            there are no quantiles.

    Source:
        openpi src/openpi/transforms.py, Unnormalize (15a9616).
    """
    stats.check_width(x.shape[-1])
    if mode == "zscore":
        return x * (stats.std + EPS) + stats.mean
    q01, q99 = stats.quantiles()
    return (x + 1.0) / 2.0 * (q99 - q01 + EPS) + q01
