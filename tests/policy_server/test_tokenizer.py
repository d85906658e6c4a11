"""Where the tokenizer's file is looked for, and what is said when it is not there."""

import hashlib
from pathlib import Path

import pytest

from golden_data import COMPACT
from policy_server.errors import TokenizerError
from policy_server.tokenizer import Tokenizer, find_tokenizer

MODEL = COMPACT / "tokenizer" / "tiny_paligemma_like.model"


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(MODEL.read_bytes())
    return path


def test_the_named_file_comes_before_all_others(tmp_path: Path):
    named = put(tmp_path / "named.model")
    put(tmp_path / "cache/big_vision/paligemma_tokenizer.model")
    env = {"OPENPI_DATA_HOME": str(tmp_path / "cache")}
    assert find_tokenizer(named, tmp_path, env) == named


def test_openpis_cache_comes_before_the_checkpoint(tmp_path: Path):
    cached = put(tmp_path / "cache/big_vision/paligemma_tokenizer.model")
    put(tmp_path / "assets/paligemma_tokenizer.model")
    env = {"OPENPI_DATA_HOME": str(tmp_path / "cache")}
    assert find_tokenizer(None, tmp_path, env) == cached


def test_openpis_cache_is_in_the_home_folder_by_default(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    cached = put(tmp_path / ".cache/openpi/big_vision/paligemma_tokenizer.model")
    assert find_tokenizer(None, None, {}) == cached


def test_the_only_model_file_of_the_checkpoints_assets_is_taken(tmp_path: Path):
    model = put(tmp_path / "ckpt/assets/deep/other.model")
    env = {"OPENPI_DATA_HOME": str(tmp_path)}
    assert find_tokenizer(None, tmp_path / "ckpt", env) == model


def test_of_several_model_files_only_the_one_of_the_usual_name_is_taken(tmp_path: Path):
    env = {"OPENPI_DATA_HOME": str(tmp_path)}
    for name in ("a", "b"):
        put(tmp_path / f"ckpt/assets/{name}.model")
    with pytest.raises(TokenizerError, match=r"2 \.model files"):
        find_tokenizer(None, tmp_path / "ckpt", env)

    usual = put(tmp_path / "ckpt/assets/paligemma_tokenizer.model")
    assert find_tokenizer(None, tmp_path / "ckpt", env) == usual


def test_without_a_file_the_places_and_the_origin_are_named(tmp_path: Path):
    env = {"OPENPI_DATA_HOME": str(tmp_path / "cache")}
    with pytest.raises(TokenizerError) as refusal:
        find_tokenizer(None, tmp_path / "ckpt", env)
    sentence = str(refusal.value)
    assert str(tmp_path / "cache/big_vision/paligemma_tokenizer.model") in sentence
    assert str(tmp_path / "ckpt/assets") in sentence
    assert "gs://big_vision/paligemma_tokenizer.model" in sentence
    assert "--policy.tokenizer" in sentence


@pytest.mark.parametrize("name", ["missing.model", "."])
def test_a_named_path_that_is_no_file_is_refused_though_another_is_there(tmp_path: Path, name: str):
    put(tmp_path / "cache/big_vision/paligemma_tokenizer.model")
    env = {"OPENPI_DATA_HOME": str(tmp_path / "cache")}
    with pytest.raises(TokenizerError, match=r"does not exist or is no file.*--policy\.tokenizer"):
        find_tokenizer(tmp_path / name, None, env)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"version https://git-lfs", MODEL.read_bytes()[:99]]
)
def test_a_file_that_is_no_sentencepiece_model_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=r"no SentencePiece model.*--policy\.tokenizer"):
        Tokenizer(path)


def test_an_unreadable_file_is_refused(tmp_path: Path):
    with pytest.raises(TokenizerError, match=r"cannot be read.*--policy\.tokenizer"):
        Tokenizer(tmp_path / "missing.model")


def test_the_digest_is_that_of_the_files_bytes():
    assert Tokenizer(MODEL).sha256 == hashlib.sha256(MODEL.read_bytes()).hexdigest()


def test_the_first_piece_of_a_sequence_is_only_there_when_asked_for():
    tokenizer = Tokenizer(MODEL)
    assert tokenizer.encode("pick", bos=True) == [2, *tokenizer.encode("pick", bos=False)]


def test_the_number_of_pieces_is_told():
    assert Tokenizer(MODEL).vocab_size == 715
