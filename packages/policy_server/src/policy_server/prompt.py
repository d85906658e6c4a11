"""The text that pi0.5 reads: the task, and the state as numbers from 0 to 255.

Source: openpi src/openpi/models/tokenizer.py, PaligemmaTokenizer (15a9616).
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int64

from policy_server.tokenizer import Tokenizer

_BIN_EDGES = np.linspace(-1.0, 1.0, 257)[:-1]  # lower edges of 256 bins of [-1, 1]


@dataclasses.dataclass(frozen=True, eq=False)
class TokenizedPrompt:
    """A prompt as the model takes it.

    Attributes:
        tokens: Piece ids, cut or padded with 0 to the model's length.
        mask: True where a piece is, False in the padding.
        n_tokens: Pieces before the cut.
    """

    tokens: Int64[np.ndarray, " l"]
    mask: Bool[np.ndarray, " l"]
    n_tokens: int


def clean_prompt(prompt: str) -> str:
    """Strip the ends and turn underscores and line breaks into spaces; the case stays."""
    return prompt.strip().replace("_", " ").replace("\n", " ")


def discretize_state(state: Float[np.ndarray, " d"]) -> Int64[np.ndarray, " d"]:
    """Number the bin of each normalised value.

    Nothing is clipped: a value below -1 gets -1 and one above 1 gets 255, as the model saw in
    training. A value on an edge belongs to the bin above it.

    Args:
        state: Normalised state. float64: a value rounded to float32 may change its bin.
    """
    return np.digitize(state, _BIN_EDGES).astype(np.int64) - 1


def format_prompt(prompt: str, state: Float[np.ndarray, " d"]) -> str:
    """Put the task and the normalised state into pi0.5's one line and its answer's start."""
    numbers = " ".join(str(number) for number in discretize_state(state))
    return f"Task: {clean_prompt(prompt)}, State: {numbers};\nAction: "


def tokenize_prompt(
    tokenizer: Tokenizer, prompt: str, state: Float[np.ndarray, " d"] | None, *, max_token_len: int
) -> TokenizedPrompt:
    """Turn a prompt into piece ids of the model's length.

    A prompt that is too long loses its end, and with it the state and the answer's start; the
    caller can tell by `n_tokens`.

    Args:
        tokenizer: The model's tokenizer.
        prompt: The task as the request has it.
        state: Normalised state; None for models without a state in their prompt.
        max_token_len: Length of the result.
    """
    if state is None:
        # the line break is encoded alone: it would merge with the last piece of the task
        ids = tokenizer.encode(clean_prompt(prompt), bos=True) + tokenizer.encode("\n", bos=False)
    else:
        ids = tokenizer.encode(format_prompt(prompt, state), bos=True)
    kept = ids[:max_token_len]
    tokens = np.zeros(max_token_len, dtype=np.int64)
    tokens[: len(kept)] = kept
    mask = np.arange(max_token_len) < len(kept)
    return TokenizedPrompt(tokens=tokens, mask=mask, n_tokens=len(ids))
