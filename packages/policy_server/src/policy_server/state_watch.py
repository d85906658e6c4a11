"""Notices a state that cannot come from the data the norm stats were made of.

Wrong stats, a state in another order, unit or frame give no error: the numbers only land somewhere
else. The test looks at one normalised state and nothing else, so a reply stays a function of its
request.

How far is too far. FAR_OUT = 5, in the units that each mode promises to be about 1:

- z-score: five standard deviations. Of a normal variable 5.7e-7 of the values lie beyond (of 16 of
  them, 1 state in 100,000); of any distribution at most 1/25 (Chebyshev).
- quantile: five half widths between the 1st and the 99th percentile. At most 2 % of the training's
  values lie beyond one half width at all; of a normal variable, five of them are 11.6 standard
  deviations.

Both are wide enough that states of the training stay silent, and far less than what a mistake does:
a dimension that holds another part's numbers is off by the distance between the two parts, which
for narrow dimensions (a base that stands still, a quaternion near its mean) is tens of these units.
What this cannot see is refused elsewhere: the mean and std of the same data, served instead of its
quantiles, fit the state as well, so the arm's row fixes the mode; and stats of much the same data
are told apart by the pinned digest only.
"""

from jaxtyping import Float64
from numpy import ndarray

from policy_server.robots import Layout

FAR_OUT = 5.0


def far_out_warning(state: Float64[ndarray, " d"], layout: Layout) -> str | None:
    """Name the numbers of a normalised state that lie beyond FAR_OUT.

    Args:
        state: Normalised state, shape (d,), d at least the layout's width; padding is not judged.
        layout: Parts of the state in order, each with its width.

    Returns:
        One sentence, or None where every number is within.
    """
    names = [f"{name}[{i}]" for name, width in layout for i in range(width)]
    far = [
        f"{name} {value:.4g}"
        for name, value in zip(names, state, strict=False)  # the padding has no names
        if abs(value) > FAR_OUT
    ]
    if not far:
        return None
    return (
        f"the normalised state lies beyond +-{FAR_OUT:g} in {', '.join(far)}: are these the arm's "
        "norm stats, and the state's order, units and frame those of the training?"
    )
