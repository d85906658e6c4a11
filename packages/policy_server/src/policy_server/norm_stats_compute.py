"""Norm stats of a dataset that need not fit into memory.

One pass for mean and standard deviation and four for the quantiles, which are exact: numpy's own
(`numpy.quantile`, method "linear"), but for the rounding of the last interpolation. The values next
to a quantile are found digit by digit: a float64 is 64 bits that sort like the number; each pass
counts the next 16 of them, among the values that share the bits found so far, and the counts tell
how the value goes on. That takes 5 MB per number of a frame, however many frames there are.

Every frame counts once, as in a LeRobot dataset's own meta/stats.json. openpi's script counts an
action once for each chunk that it is in, which weighs the first and last frames of an episode
differently.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from policy_server.lerobot_dataset import LeRobotDataset
from policy_server.norm_stats import FieldStats

Batches = Callable[[], Iterator[Float64[np.ndarray, "n d"]]]
"""Reads the same rows again at each call."""

_SIGN = np.uint64(1 << 63)
_DIGIT_BITS = 16


def compute_field_stats(dataset: LeRobotDataset) -> tuple[FieldStats, FieldStats]:
    """Statistics of the states and of the actions, in the robot's order and units.

    Raises:
        DatasetError: The dataset cannot be read.
    """
    mean, std = moments(dataset.batches())
    q01, q99 = quantiles(dataset.batches, dataset.n_frames, (0.01, 0.99))
    state, actions = slice(dataset.state_width), slice(dataset.state_width, None)
    return (
        FieldStats(mean[state], std[state], q01[state], q99[state]),
        FieldStats(mean[actions], std[actions], q01[actions], q99[actions]),
    )


def moments(
    batches: Iterator[Float64[np.ndarray, "n d"]],
) -> tuple[Float64[np.ndarray, " d"], Float64[np.ndarray, " d"]]:
    """Mean and standard deviation (of the population) over all rows of at least one batch.

    A constant column has a standard deviation of exactly 0.

    Source:
        Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
        variances", 1979.
    """
    first = next(batches)
    origin = first[0]  # sums are of the distances to it: exact for constants, small for others
    count, mean, squares = _sum_up(first - origin)
    for rows in batches:
        n, batch_mean, batch_squares = _sum_up(rows - origin)
        delta = batch_mean - mean
        squares = squares + batch_squares + delta**2 * (count * n / (count + n))
        count += n
        mean = mean + delta * (n / count)
    return origin + mean, np.sqrt(squares / count)


def _sum_up(
    rows: Float64[np.ndarray, "n d"],
) -> tuple[int, Float64[np.ndarray, " d"], Float64[np.ndarray, " d"]]:
    """Number of rows, their mean, and the sum of the squared distances to it."""
    mean = rows.mean(axis=0)
    return len(rows), mean, ((rows - mean) ** 2).sum(axis=0)


def quantiles(batches: Batches, n_rows: int, at: Sequence[float]) -> Float64[np.ndarray, "q d"]:
    """Quantiles over all rows, between the two nearest values by linear interpolation.

    Args:
        batches: Reads the rows; called again for each pass.
        n_rows: How many there are.
        at: Which quantiles, each within [0, 1].

    Returns:
        Shape (len(at), d).
    """
    positions = [(n_rows - 1) * q for q in at]
    below = [int(position) for position in positions]
    ranks = sorted({min(rank + step, n_rows - 1) for rank in below for step in (0, 1)})
    value_of = dict(zip(ranks, select_ranks(batches, ranks), strict=True))
    return np.stack(
        [
            value_of[rank]
            + (value_of[min(rank + 1, n_rows - 1)] - value_of[rank]) * (position - rank)
            for rank, position in zip(below, positions, strict=True)
        ]
    )


def select_ranks(batches: Batches, ranks: Sequence[int]) -> Float64[np.ndarray, "r d"]:
    """The values that would have these places if each column were sorted.

    Args:
        batches: Reads the rows, without NaN; called again for each pass.
        ranks: Places, counted from 0, each less than the number of rows.

    Returns:
        Shape (len(ranks), d): values of the data, bit for bit.
    """
    width = next(batches()).shape[1]
    found = np.zeros((len(ranks), width), np.uint64)  # digits so far
    places = np.repeat(np.array(ranks)[:, None], width, axis=1)  # among values with those digits
    for shift in range(64 - _DIGIT_BITS, -1, -_DIGIT_BITS):
        counts = _count_digits(batches(), found, shift)
        up_to = counts.cumsum(axis=-1)
        digits = (up_to <= places[..., None]).sum(axis=-1, keepdims=True)
        here = np.take_along_axis(counts, digits, axis=-1)
        places = places - (np.take_along_axis(up_to, digits, axis=-1) - here)[..., 0]
        found = (found << np.uint64(_DIGIT_BITS)) | digits[..., 0].astype(np.uint64)
    bits = np.where(found >= _SIGN, found ^ _SIGN, ~found)
    return bits.view(np.float64)


def _count_digits(
    batches: Iterator[Float64[np.ndarray, "n d"]], found: UInt64[np.ndarray, "r d"], shift: int
) -> Int64[np.ndarray, "r d b"]:
    """How often each digit follows the digits that were found."""
    counts = np.zeros((*found.shape, 1 << _DIGIT_BITS), np.int64)
    for rows in batches:
        keys = _sortable_bits(rows) >> np.uint64(shift)
        digits = keys & np.uint64((1 << _DIGIT_BITS) - 1)
        heads = keys >> np.uint64(_DIGIT_BITS)
        for rank, column in np.ndindex(found.shape):
            matching = digits[heads[:, column] == found[rank, column], column]
            np.add.at(counts[rank, column], matching, 1)
    return counts


def _sortable_bits(rows: Float64[np.ndarray, "n d"]) -> UInt64[np.ndarray, "n d"]:
    """Integers in the order of the numbers; -0 comes just before 0."""
    bits = np.ascontiguousarray(rows).view(np.uint64)
    return np.where(bits >= _SIGN, ~bits, bits | _SIGN)


def pad_field(field: FieldStats, width: int) -> FieldStats:
    """The statistics of a signal that zeros are appended to, but for their std, which is 1.

    So do RoboCasa's fork of openpi for mean and std, which leaves a padding of 0 in normalised
    numbers. For quantiles it has no rule; those of a zero are 0, which makes the padding -1.

    Args:
        field: With quantiles.
        width: At least the field's own.
    """
    zeros = np.zeros(width - field.width)
    q01, q99 = field.quantiles()
    return FieldStats(
        mean=np.append(field.mean, zeros),
        std=np.append(field.std, zeros + 1.0),
        q01=np.append(q01, zeros),
        q99=np.append(q99, zeros),
    )
