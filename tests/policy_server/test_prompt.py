"""The rules of the prompt that one can say in words; test_prompt_golden.py has the rest."""

import numpy as np
import pytest

from golden_data import COMPACT
from policy_server.prompt import discretize_state, format_prompt, tokenize_prompt
from policy_server.tokenizer import Tokenizer

TOKENIZER = Tokenizer(COMPACT / "tokenizer" / "tiny_paligemma_like.model")


@pytest.mark.parametrize(
    ("value", "number"),
    [(-1.0, 0), (0.0, 128), (1.0, 255), (9.0, 255), (-1.0000001, -1), (-9.0, -1), (-0.0, 128)],
)
def test_numbers_below_the_range_are_minus_one_and_above_it_255(value: float, number: int):
    assert discretize_state(np.array([value])).tolist() == [number]


def test_the_prompt_is_one_line_and_a_begun_answer():
    text = format_prompt(" Open_the\ndrawer ", np.array([0.0, -2.0]))
    assert text == "Task: Open the drawer, State: 128 -1;\nAction: "


def test_a_prompt_that_just_fits_is_not_cut():
    n_tokens = tokenize_prompt(TOKENIZER, "open", None, max_token_len=50).n_tokens

    fits = tokenize_prompt(TOKENIZER, "open", None, max_token_len=n_tokens)
    cut = tokenize_prompt(TOKENIZER, "open", None, max_token_len=n_tokens - 1)

    assert fits.mask.all()
    assert fits.n_tokens == len(fits.tokens)
    assert cut.n_tokens == len(cut.tokens) + 1
    assert cut.tokens.tolist() == fits.tokens[:-1].tolist()
