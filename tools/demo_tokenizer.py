"""Trains the demo arms' tokenizer: a small stand-in for PaliGemma's, for these arms only.

PaliGemma's own file is not ours to ship, and the demo's model has a small vocabulary. The settings
are PaliGemma's where they matter to a prompt: pad 0, eos 1, bos 2, unk 3, digits split, bytes as a
fallback, no space put in front. The same command gives the same file.

    .venv-server/bin/python tools/demo_tokenizer.py norm_stats/demo/tokenizer.model
"""

import io
import sys
from pathlib import Path

import numpy as np
import sentencepiece

VOCAB_SIZE = 512
N_SENTENCES = 400
SUBJECTS = ("the red cube", "the cube", "the bowl", "the cup", "the can", "the apple")
VERBS = ("Lift", "Pick up", "Grasp", "Place", "Move", "Push")
PLACES = ("", " from the counter", " from the table", " and place it in the cabinet")


def sentences() -> list[str]:
    """Prompts in the form that the model sees: a task and a state of whole numbers."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(N_SENTENCES):
        task = f"{rng.choice(VERBS)} {rng.choice(SUBJECTS)}{rng.choice(PLACES)}."
        state = " ".join(str(n) for n in rng.integers(-1, 256, 32))
        made.append(f"Task: {task}, State: {state};\nAction: ")
    return made


def main() -> None:
    """Write the SentencePiece model to the path that is given."""
    out = Path(sys.argv[1])
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences()),
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCAB_SIZE,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        byte_fallback=True,
        split_digits=True,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        user_defined_symbols=["\n"],
        num_threads=1,
        minloglevel=2,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(model.getvalue())


if __name__ == "__main__":
    main()
