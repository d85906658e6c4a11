import hashlib
import random

import numpy as np
import pytest

from golden_data import golden_roots
from sim_client.errors import ConfigError
from sim_client.seeding import episode_noise, seed_globals

GOLDEN = "e2e_pi05_robocasa.npz"


def test_noise_is_the_recorded_evaluators_to_the_bit():
    noise = episode_noise(42, 7, 3, (50, 32))

    assert noise.dtype == np.float32
    digest = hashlib.sha256(noise.tobytes()).hexdigest()
    assert digest == "8b8804c27dac83130da00ba1ee0b5a6742e3ee54e188e00c2086394d916e6e5e"


@pytest.mark.parametrize("root", golden_roots(), ids=str)
def test_noise_equals_the_golden_requests(root):
    if not (root / GOLDEN).is_file():
        pytest.skip(f"{GOLDEN} is not in {root.name}")
    with np.load(root / GOLDEN) as golden:
        if "noise" not in golden:
            pytest.skip(f"{GOLDEN} of {root.name} has no noise")
        np.testing.assert_array_equal(episode_noise(42, 7, 3, (50, 32)), golden["noise"])


def test_queries_episodes_and_action_seeds_have_noise_of_their_own():
    triples = [(42, 0, 0), (42, 0, 1), (42, 1, 0), (43, 1, 0)]
    noises = {episode_noise(*triple, (4, 2)).tobytes() for triple in triples}
    assert len(noises) == len(triples)


def test_noise_leaves_the_global_generators_alone():
    seed_globals(5)
    first = np.random.random(), random.random()  # noqa: NPY002
    seed_globals(5)
    episode_noise(42, 7, 3, (50, 32))
    assert (np.random.random(), random.random()) == first  # noqa: NPY002


def test_global_generators_depend_on_the_episode():
    seed_globals(5)
    of_five = np.random.random(), random.random()  # noqa: NPY002
    seed_globals(6)
    of_six = np.random.random(), random.random()  # noqa: NPY002
    assert all(a != b for a, b in zip(of_five, of_six, strict=True))


@pytest.mark.parametrize("ep_id", [-1, 2**32])
def test_an_episode_id_numpy_cannot_take_names_its_flag(ep_id):
    with pytest.raises(ConfigError, match=r"--args\.env_seed_offset"):
        seed_globals(ep_id)


def test_a_negative_noise_seed_names_its_flags():
    with pytest.raises(ConfigError, match=r"--args\.action_seed"):
        episode_noise(-1, 0, 0, (2, 2))
