"""Prompts are openpi's, to the last token."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden_data import golden_roots
from policy_server.prompt import clean_prompt, format_prompt, tokenize_prompt
from policy_server.tokenizer import Tokenizer


def recordings() -> Iterator:
    for root in golden_roots():
        for index, row in enumerate(json.loads((root / "prompts.json").read_text())):
            yield pytest.param(root, row, id=f"{root.parent.name}-{index}-{row['prompt'][:16]!r}")


def state_of(row: dict[str, Any]) -> np.ndarray | None:
    if row["state"] is None:
        return None
    return np.array([float(number) for number in row["state"]], dtype=row["state_dtype"])


every_prompt = pytest.mark.parametrize(("root", "row"), list(recordings()))


@every_prompt
def test_the_text_is_that_of_openpi(root: Path, row: dict[str, Any]):
    state = state_of(row)
    texts = [call["text"] for call in row["encode_calls"]]

    if state is None:
        assert [clean_prompt(row["prompt"]), "\n"] == texts
    else:
        assert [format_prompt(row["prompt"], state)] == texts


@every_prompt
def test_the_tokens_are_those_of_openpi(root: Path, row: dict[str, Any]):
    tokenizer = Tokenizer(root / "tokenizer" / "tiny_paligemma_like.model")

    result = tokenize_prompt(tokenizer, row["prompt"], state_of(row), max_token_len=row["len"])

    expected = np.array(row["tokens"], dtype=row["tokens_dtype"])
    np.testing.assert_array_equal(result.tokens, expected, strict=True)
    assert result.mask.dtype == row["mask_dtype"]
    assert result.mask.tolist() == [i < row["mask_true"] for i in range(row["len"])]


@every_prompt
def test_the_number_of_tokens_before_the_cut_is_told(root: Path, row: dict[str, Any]):
    tokenizer = Tokenizer(root / "tokenizer" / "tiny_paligemma_like.model")

    result = tokenize_prompt(tokenizer, row["prompt"], state_of(row), max_token_len=row["len"])

    assert result.n_tokens == sum(len(call["tiny_ids"]) for call in row["encode_calls"])
