"""PaliGemma's SentencePiece tokenizer: where its file lies, and the little that is used of it."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import sentencepiece

from policy_server.errors import TokenizerError

TOKENIZER_NAME = "paligemma_tokenizer.model"
_ORIGIN = f"openpi's public copy, gs://big_vision/{TOKENIZER_NAME}"
_CACHE_VARIABLE = "OPENPI_DATA_HOME"  # openpi's cache of downloads
_CACHE_DEFAULT = "~/.cache/openpi"


class Tokenizer:
    """A SentencePiece model and the digest of its file."""

    def __init__(self, path: Path) -> None:
        """Load the model.

        Raises:
            TokenizerError: The file cannot be read or is no SentencePiece model.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise TokenizerError(
                f"the tokenizer {path} cannot be read ({error.strerror}); give another file with "
                "--policy.tokenizer."
            ) from error
        self.sha256 = hashlib.sha256(content).hexdigest()
        try:
            # no bytes at all would leave the processor empty, without an error
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=content or b"\0")
        except RuntimeError as error:
            raise TokenizerError(
                f"the tokenizer {path} is no SentencePiece model; give {_ORIGIN}, with "
                "--policy.tokenizer."
            ) from error

    @property
    def vocab_size(self) -> int:
        """How many pieces there are; the model's embedding must have as many rows or more."""
        return self._processor.vocab_size()

    def encode(self, text: str, *, bos: bool) -> list[int]:
        """Piece ids of a text, with the piece that begins a sequence in front if `bos`."""
        return self._processor.encode(text, add_bos=bos)


def find_tokenizer(
    explicit: Path | None, checkpoint_dir: Path | None, env: Mapping[str, str] = os.environ
) -> Path:
    """Find the tokenizer's file: the named one, else openpi's cache, else the checkpoint's assets.

    Args:
        explicit: The file of --policy.tokenizer or of the arm's row; no other is looked for.
        checkpoint_dir: A checkpoint whose `assets` may hold the file: by its usual name, or as the
            only `.model` file below.
        env: Environment, for openpi's cache ($OPENPI_DATA_HOME, by default ~/.cache/openpi).

    Raises:
        TokenizerError: There is none; the sentence lists where it was looked for and its origin.
    """
    if explicit is not None:
        if not explicit.is_file():
            raise TokenizerError(
                f"the tokenizer {explicit} does not exist or is no file; give {_ORIGIN}, with "
                "--policy.tokenizer."
            )
        return explicit
    cache = Path(env.get(_CACHE_VARIABLE) or _CACHE_DEFAULT).expanduser()
    candidates = [cache / "big_vision" / TOKENIZER_NAME]
    looked = [str(candidates[0])]
    if checkpoint_dir is not None:
        assets = checkpoint_dir / "assets"
        models = sorted(path for path in assets.glob("**/*.model") if path.is_file())
        candidates += [assets / TOKENIZER_NAME, *(models if len(models) == 1 else [])]
        looked.append(f"{assets} ({len(models)} .model files)")
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise TokenizerError(
        f"there is no tokenizer in {' or '.join(looked)}; download {_ORIGIN}, to the first of "
        "these or give it with --policy.tokenizer."
    )
