import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim_client.chunking import ChunkPlayer


@given(replan_steps=st.integers(1, 20), extra=st.integers(0, 30), n_steps=st.integers(1, 60))
def test_every_replan_steps_a_query_and_the_first_actions_of_each_chunk(
    replan_steps, extra, n_steps
):
    player = ChunkPlayer(replan_steps)
    played, n_chunks = [], 0
    for _ in range(n_steps):
        if player.needs_query:
            rows = np.arange(replan_steps + extra, dtype=np.float64)
            player.load(np.stack([np.full_like(rows, n_chunks), rows], axis=1))
            n_chunks += 1
        played.append(tuple(player.next_action()))

    assert played == [divmod(step, replan_steps) for step in range(n_steps)]


def test_a_chunk_shorter_than_replan_steps_is_refused():
    with pytest.raises(ValueError, match="shorter than replan_steps 5"):
        ChunkPlayer(5).load(np.zeros((4, 2)))


def test_a_chunk_cannot_replace_one_that_is_still_playing():
    player = ChunkPlayer(2)
    player.load(np.zeros((2, 2)))
    player.next_action()
    with pytest.raises(ValueError, match="still had actions"):
        player.load(np.zeros((2, 2)))


def test_no_action_comes_from_an_empty_player():
    with pytest.raises(ValueError, match="load a chunk first"):
        ChunkPlayer(1).next_action()
