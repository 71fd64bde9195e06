"""Reads the tokenizer of a checkpoint folder, whichever file format it comes in.

Moonshot's ``tiktoken.model`` and Hugging Face's ``tokenizer.json`` are known. Nothing is ever
downloaded.
"""

from __future__ import annotations

from pathlib import Path

from milepost.chat.hf_file import read_hf
from milepost.chat.tiktoken_file import read_tiktoken
from milepost.chat.tokenizer import Tokenizer, read_tokenizer_config
from milepost.errors import TokenizerError

__all__ = ["load_tokenizer"]

TIKTOKEN_FILE = "tiktoken.model"
HF_FILE = "tokenizer.json"


def load_tokenizer(folder: Path, *, model_vocab_size: int | None = None) -> Tokenizer:
    """Read the tokenizer of a checkpoint folder.

    Moonshot's ``tiktoken.model`` is preferred where both formats are present: it is the one that
    Kimi models are published with.

    Args:
        folder: the checkpoint folder.
        model_vocab_size: rows of the model's embedding; a larger vocabulary is refused.

    Raises:
        TokenizerError: files are missing, torn or foreign, or don't fit the model.
    """
    if not folder.is_dir():
        raise TokenizerError(f"There is no folder {folder}. Give the folder that holds the checkpoint.")
    tokenizer = _read(folder)
    if model_vocab_size is not None and tokenizer.vocab_size > model_vocab_size:
        raise TokenizerError(
            f"Wrong tokenizer: {folder} has {tokenizer.vocab_size} tokens, but the model's embedding "
            f"only has {model_vocab_size} rows. Copy the tokenizer files that were published with this model."
        )
    return tokenizer


def _read(folder: Path) -> Tokenizer:
    if (folder / TIKTOKEN_FILE).exists():
        return read_tiktoken(folder / TIKTOKEN_FILE, read_tokenizer_config(folder, required=True))
    if (folder / HF_FILE).exists():
        return read_hf(folder / HF_FILE, read_tokenizer_config(folder, required=False))
    raise TokenizerError(
        f"{folder} has no tokenizer: neither {TIKTOKEN_FILE} nor {HF_FILE}. "
        "Copy the tokenizer files that were published with this checkpoint."
    )
