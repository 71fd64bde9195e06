"""Small tokenizer folders in both formats, built from the same merges, as fixtures."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milepost.chat.tokenizer import Tokenizer
from milepost.chat.tokenizer_folder import load_tokenizer

WORDS = (
    *("message", " role", '="', "user", "system", "assistant", "tool", "response", "think", " type", " the"),
    *("hello", " world", " is", "ing", "12", "123", "的", "é", "  ", "&quot", "call", "argument", " key"),
)

K3_SPECIALS = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|end_of_msg|>",
    3: "<|open|>",
    4: "<|close|>",
    5: "<|sep|>",
    255: "[PAD]",
}
IM_SPECIALS = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|im_end|>",
    3: "<|im_user|>",
    4: "<|im_assistant|>",
    10: "<|im_system|>",
    17: "<|im_middle|>",
}
IM_TOOL_SPECIALS = IM_SPECIALS | {
    11: "<|tool_calls_section_begin|>",
    12: "<|tool_calls_section_end|>",
    13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>",
    15: "<|tool_call_end|>",
}


def pieces() -> list[bytes]:
    """All single bytes, then every prefix of every word, so that left-to-right merges reach the words."""
    found = dict.fromkeys(bytes([value]) for value in range(256))
    for word in WORDS:
        raw = word.encode()
        found |= dict.fromkeys(raw[:end] for end in range(2, len(raw) + 1))
    return list(found)


def write_config(
    folder: Path, names: dict[int, str], first_special: int, defaults: dict[str, Any] | None
) -> None:
    added = {
        str(first_special + offset): {"content": name, "special": "|" not in name}
        for offset, name in names.items()
    }
    config: dict[str, Any] = {"added_tokens_decoder": added}
    if defaults is not None:
        config["default_chat_template_kwargs"] = defaults
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_tiktoken(
    folder: Path, names: dict[int, str] = K3_SPECIALS, defaults: dict[str, Any] | None = None
) -> Path:
    """A folder with tiktoken.model and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [base64.b64encode(piece) + b" %d\n" % rank for rank, piece in enumerate(pieces())]
    (folder / "tiktoken.model").write_bytes(b"".join(lines))
    write_config(folder, names, len(lines), defaults)
    return folder


def spelled(piece: bytes) -> str:
    """A piece in byte-level BPE's alphabet."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [value for value in range(256) if value not in printable]
    return "".join(chr(value) if value in printable else chr(0x100 + others.index(value)) for value in piece)


def write_hf(
    folder: Path, names: dict[int, str] = K3_SPECIALS, defaults: dict[str, Any] | None = None
) -> Path:
    """A folder with tokenizer.json and tokenizer_config.json, markers in the vocabulary too."""
    folder.mkdir(parents=True, exist_ok=True)
    every = pieces()
    vocab = {spelled(piece): rank for rank, piece in enumerate(every)}
    merges = [[spelled(piece[:-1]), spelled(piece[-1:])] for piece in every if len(piece) > 1]
    added = []
    for offset, name in names.items():
        vocab[name] = len(every) + offset
        added.append(
            {"id": len(every) + offset, "content": name, "special": "|" not in name}
            | {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        )
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    content = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": True},
    }
    (folder / "tokenizer.json").write_text(json.dumps(content))
    write_config(folder, names, len(every), defaults)
    return folder


@pytest.fixture(scope="session", params=["tiktoken", "hf"])
def k3_tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Kimi K3's specials over the small vocabulary, in each file format."""
    write: Callable[[Path], Path] = {"tiktoken": write_tiktoken, "hf": write_hf}[request.param]
    return load_tokenizer(write(tmp_path_factory.mktemp(request.param)))


@pytest.fixture(scope="session")
def one_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The same in one format, for what costs time and has nothing to do with tokens."""
    return load_tokenizer(write_tiktoken(tmp_path_factory.mktemp("one")))


@pytest.fixture(scope="session")
def im_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Kimi-Linear's specials over the small vocabulary."""
    return load_tokenizer(write_tiktoken(tmp_path_factory.mktemp("im"), IM_SPECIALS))


@pytest.fixture(scope="session")
def im_tool_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Kimi-Linear's specials, those of tools among them."""
    return load_tokenizer(write_tiktoken(tmp_path_factory.mktemp("im-tools"), IM_TOOL_SPECIALS))
