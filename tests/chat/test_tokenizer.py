"""Both tokenizer formats: what they yield, and what they refuse."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.chat.text_pieces import MAX_PIECE_CHARS, MAX_RUN_CHARS, bounded_pieces
from milepost.chat.tokenizer import Tokenizer
from milepost.chat.tokenizer_folder import load_tokenizer
from milepost.errors import TokenizerError
from tests.chat.conftest import K3_SPECIALS, pieces, write_hf, write_tiktoken

MARKERS = tuple(K3_SPECIALS.values())
SPELLING = st.lists(st.one_of(st.text(), st.sampled_from(MARKERS)), max_size=8).map("".join)
FIRST_SPECIAL = len(pieces())


@settings(deadline=None)
@given(text=SPELLING)
def test_text_survives_and_never_yields_a_special_token(k3_tokenizer: Tokenizer, text: str) -> None:
    ids = k3_tokenizer.encode(text)
    assert all(token_id < FIRST_SPECIAL for token_id in ids)
    assert b"".join(k3_tokenizer.token_bytes(token_id) for token_id in ids) == text.encode()
    assert k3_tokenizer.decode(ids) == text


def test_specials_have_ids_names_and_no_bytes(k3_tokenizer: Tokenizer) -> None:
    for offset, name in K3_SPECIALS.items():
        token_id = k3_tokenizer.special(name)
        assert token_id == FIRST_SPECIAL + offset
        assert k3_tokenizer.special_name(token_id) == name
        assert k3_tokenizer.token_bytes(token_id) == b""
    assert k3_tokenizer.vocab_size == FIRST_SPECIAL + 256
    assert k3_tokenizer.special_name(5) is None
    assert k3_tokenizer.token_bytes(k3_tokenizer.vocab_size + 7) == b""
    assert k3_tokenizer.token_bytes(-1) == b""
    with pytest.raises(TokenizerError, match=r"no special token <.nothing"):
        k3_tokenizer.special("<|nothing|>")


def test_lone_surrogates_become_replacement_characters(k3_tokenizer: Tokenizer) -> None:
    assert k3_tokenizer.decode(k3_tokenizer.encode("a\ud800b")) == "a\ufffdb"
    assert k3_tokenizer.decode(k3_tokenizer.encode("\ud83d\ude00")) == "\U0001f600"


def test_unnamed_special_ids_are_reserved(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_tiktoken(tmp_path))
    assert tokenizer.special_name(FIRST_SPECIAL + 100) == f"<|reserved_token_{FIRST_SPECIAL + 100}|>"


@pytest.mark.parametrize("write", [write_tiktoken, write_hf])
def test_nothing_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], Path]
) -> None:
    def refuse(*_arguments: object, **_more: object) -> None:
        raise AssertionError("a tokenizer opened a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    tokenizer = load_tokenizer(write(tmp_path))
    assert tokenizer.decode(tokenizer.encode("hello world")) == "hello world"


def test_chat_defaults_come_from_the_config(tmp_path: Path) -> None:
    assert load_tokenizer(write_tiktoken(tmp_path / "a")).chat_defaults == {}
    folder = write_tiktoken(tmp_path / "b", defaults={"thinking": False})
    assert load_tokenizer(folder).chat_defaults == {"thinking": False}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("don't we'LL", ["don't", " we'LL"]),
        ("camelCase HTTPServer", ["camel", "Case", " HTTPServer"]),
        ("12345", ["123", "45"]),
        ("的字abc", ["的字", "abc"]),
        ("a  b", ["a", " ", " b"]),
        ("x()\n\ny", ["x", "()\n\n", "y"]),
        ("end  \n  \nnext", ["end", "  \n  \n", "next"]),
    ],
)
def test_the_split_pattern_cuts_as_moonshots(text: str, expected: list[str]) -> None:
    # tiktoken's own regex engine is asked: with no merges but these, each pre-token is one token.
    import tiktoken

    from milepost.chat.tiktoken_file import SPLIT_PATTERN

    ranks = {bytes([value]): value for value in range(256)}
    for word in expected:
        raw = word.encode()
        for end in range(2, len(raw) + 1):
            ranks.setdefault(raw[:end], len(ranks))
    # A merge across a cut would be taken if the pattern allowed it.
    for left, right in itertools.pairwise(expected):
        ranks.setdefault((left + right).encode(), len(ranks))
    encoding = tiktoken.Encoding("t", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens={})
    assert [encoding.decode([token]) for token in encoding.encode_ordinary(text)] == expected


@given(text=st.text(alphabet="ab \n", max_size=60), piece=st.integers(1, 20), run=st.integers(1, 6))
def test_pieces_are_bounded_and_whole(text: str, piece: int, run: int) -> None:
    cut = list(bounded_pieces(text, max_piece=piece, max_run=run))
    assert "".join(cut) == text
    for part in cut:
        assert len(part) <= piece
        assert all(len(word) <= run for word in part.split())
        assert all(len(gap) <= run for gap in part.replace("a", "b").replace("\n", " ").split("b"))


def test_pieces_cut_only_what_is_too_long() -> None:
    run = "x" * (MAX_RUN_CHARS + 3)
    assert [len(part) for part in bounded_pieces("a b " + run + " c")] == [4 + MAX_RUN_CHARS, 3 + 2]
    assert list(bounded_pieces("a b" * 10)) == ["a b" * 10]
    assert len(next(bounded_pieces("a " * MAX_PIECE_CHARS))) == MAX_PIECE_CHARS


def test_no_token_reaches_across_a_cut(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_tiktoken(tmp_path))
    # "me" is a token; the cut falls between an "m" and its "e".
    text = "e" + "me" * MAX_RUN_CHARS
    ids = tokenizer.encode(text)
    cut = sum(1 for _ in itertools.takewhile(lambda end: end <= MAX_RUN_CHARS, _ends(tokenizer, ids)))
    assert tokenizer.decode(ids[:cut]) == text[:MAX_RUN_CHARS]
    assert [tokenizer.token_bytes(token_id) for token_id in ids[cut - 1 : cut + 1]] == [b"m", b"e"]


def _ends(tokenizer: Tokenizer, ids: list[int]) -> Iterator[int]:
    """Where each token ends, in bytes."""
    return itertools.accumulate(len(tokenizer.token_bytes(token_id)) for token_id in ids)


@pytest.mark.parametrize("filler", ["a", " ", "\n", "的", " a", "\u0301"])
def test_long_inputs_take_linear_time(k3_tokenizer: Tokenizer, filler: str) -> None:
    def seconds(length: int) -> float:
        text = filler * length
        start = time.process_time()
        k3_tokenizer.encode(text)
        return time.process_time() - start

    seconds(1000)
    small, large = seconds(50_000), seconds(400_000)
    # Eight times the text; quadratic would be 64 times the time. Half a second absorbs noise.
    assert large < 20 * small + 0.5


def _torn(folder: Path) -> None:
    raw = (folder / "tiktoken.model").read_bytes()
    (folder / "tiktoken.model").write_bytes(raw[: len(raw) // 2])


def _hole(folder: Path) -> None:
    lines = (folder / "tiktoken.model").read_bytes().splitlines(keepends=True)
    (folder / "tiktoken.model").write_bytes(b"".join(lines[:300] + lines[301:]))


def _short(folder: Path) -> None:
    lines = (folder / "tiktoken.model").read_bytes().splitlines(keepends=True)
    (folder / "tiktoken.model").write_bytes(b"".join(lines[:100]))


def _foreign_specials(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": {"163587": {"content": "<|open|>"}}})
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "tiktoken.model").unlink(), "neither tiktoken.model nor tokenizer.json"),
        (lambda folder: (folder / "tokenizer_config.json").unlink(), "tokenizer_config.json is missing"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("{"), "torn or not JSON"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("[]"), "must hold a JSON object"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("[" * 100_000), "torn or not JSON"),
        (lambda folder: (folder / "tiktoken.model").write_bytes(b"\x00\xff\n"), "line 1: expected base64"),
        (lambda folder: (folder / "tiktoken.model").write_bytes(b""), "lacks 256 of the 256"),
        (_torn, "torn"),
        (_hole, "line 301: expected a new piece of rank 300, found rank 301"),
        (_short, "lacks 156 of the 256 single bytes"),
        (_foreign_specials, "belong to different models"),
    ],
)
def test_damaged_tiktoken_folders_are_refused(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    folder = write_tiktoken(tmp_path)
    damage(folder)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(folder)


def test_damaged_hf_files_are_refused(tmp_path: Path) -> None:
    folder = write_hf(tmp_path)
    content = json.loads((folder / "tokenizer.json").read_text())
    for change, message in (
        ({"model": content["model"] | {"type": "Unigram"}}, "byte-level BPE; found model type 'Unigram'"),
        ({"model": content["model"] | {"merges": [["a", "\u01ff"]]}}, "can't be read"),
        ({"model": content["model"] | {"vocab": {"▁a": 0}}}, "not spelled in byte-level BPE's alphabet"),
        ({"added_tokens": [{"id": 3}]}, "added_tokens must hold objects"),
        ({"added_tokens": [{"id": float("inf"), "content": "x"}]}, "added_tokens must hold objects"),
        ({"added_tokens": True}, "added_tokens must be a list"),
    ):
        (folder / "tokenizer.json").write_text(json.dumps(content | change))
        with pytest.raises(TokenizerError, match=message):
            load_tokenizer(folder)
    (folder / "tokenizer.json").write_text(json.dumps(content)[:-40])
    with pytest.raises(TokenizerError, match="torn or not JSON"):
        load_tokenizer(folder)


@pytest.mark.parametrize("write", [write_tiktoken, write_hf])
def test_a_vocabulary_larger_than_the_model_is_the_wrong_tokenizer(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    folder = write(tmp_path)
    size = FIRST_SPECIAL + 256
    assert load_tokenizer(folder, model_vocab_size=size).vocab_size == size
    with pytest.raises(TokenizerError, match=f"Wrong tokenizer.*{size} tokens.*{size - 1} rows"):
        load_tokenizer(folder, model_vocab_size=size - 1)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"There is no folder .*nowhere"):
        load_tokenizer(tmp_path / "nowhere")
