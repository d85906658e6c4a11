"""Success rates with their uncertainty."""

import dataclasses

from scipy.stats import binomtest


@dataclasses.dataclass(frozen=True)
class Rate:
    """A success rate over scored episodes.

    Attributes:
        n: Scored episodes (success or timeout).
        successes: How many of them succeeded.
        rate: successes / n, None where n is 0.
        interval_95: Wilson score interval at 95 %, None where n is 0.
    """

    n: int
    successes: int
    rate: float | None
    interval_95: tuple[float, float] | None


def success_rate(successes: int, n: int) -> Rate:
    """The rate of `successes` in `n` scored episodes with its Wilson 95 % interval.

    Source:
        E. B. Wilson, JASA 22 (1927), as in scipy.stats.binomtest(...).proportion_ci("wilson").
    """
    if n == 0:
        return Rate(n=0, successes=0, rate=None, interval_95=None)
    interval = binomtest(successes, n).proportion_ci(confidence_level=0.95, method="wilson")
    return Rate(n, successes, successes / n, (float(interval.low), float(interval.high)))
