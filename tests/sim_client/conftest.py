import pytest

from sim_client.envs.robosuite import RobosuiteEnv


@pytest.fixture(scope="session")
def env():
    """Lift, built once: that earlier episodes leave no trace in later ones is itself a test."""
    built = RobosuiteEnv()
    yield built
    built.close()
