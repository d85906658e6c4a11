import pytest

from sim_client.statistics import success_rate


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998), table I, method 3 (score)
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_interval_is_wilsons_as_newcombe_tabulates_it(successes, n, low, high):
    rate = success_rate(successes, n)
    assert rate.interval_95 == pytest.approx((low, high), abs=5e-5)
    assert rate.rate == successes / n


def test_no_scored_episode_has_no_rate():
    rate = success_rate(0, 0)
    assert (rate.n, rate.rate, rate.interval_95) == (0, None, None)
