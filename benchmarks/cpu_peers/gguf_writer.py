"""llama.cpp's own converter, in the peers' environment: SOURCE CHECKPOINT GGUF f32|bf16|q8_0.

SOURCE is llama.cpp's source tree. The vocabulary is written here: the converter knows a tokenizer by the
hash of what it does to a sample text, which no small model's matches. Benchmarks send token ids, so only the
pieces must be right, by which a server turns ids to text.
"""

from __future__ import annotations

import base64
import json
import runpy
import sys
from pathlib import Path
from typing import Any

__all__ = ["pieces", "visible"]

SPECIALS = 256
NORMAL, CONTROL = 1, 3
"""gguf.TokenType"""


def visible(piece: bytes) -> str:
    """A piece in GPT-2's spelling, in which every byte is a character that can be seen."""
    return "".join(_BYTE_CHARACTERS[byte] for byte in piece)


def _byte_characters() -> dict[int, str]:
    """Latin-1's visible bytes stand for themselves, the others take characters from 256 on, in order."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


_BYTE_CHARACTERS = _byte_characters()


def pieces(checkpoint: Path) -> list[str]:
    """Every token's piece in GPT-2's spelling, specials by their names, in the order of the ids."""
    lines = (checkpoint / "tiktoken.model").read_bytes().splitlines()
    ranked = sorted((int(rank), base64.b64decode(piece)) for piece, rank in (line.split() for line in lines))
    config = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))
    names = {int(key): entry["content"] for key, entry in config["added_tokens_decoder"].items()}
    ordinary = [visible(piece) for _, piece in ranked]
    ids = range(len(ordinary), len(ordinary) + SPECIALS)
    return ordinary + [names.get(token, f"<|reserved_token_{token}|>") for token in ids]


def _set_vocab(model: Any) -> None:  # noqa: ANN401 - a class of the converter
    tokens = pieces(model.dir_model)
    writer, ordinary = model.gguf_writer, len(tokens) - SPECIALS
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([NORMAL] * ordinary + [CONTROL] * SPECIALS)
    # Loading asks for at least one; text, which is all that merges are for, is never sent.
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(model.hparams["eos_token_id"])


def main(source: Path, checkpoint: Path, gguf: Path, outtype: str) -> None:
    """Write the file."""
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    from conversion.kimi_k3 import KimiK3Model
    from conversion.kimi_linear import KimiLinearModel

    for model in (KimiK3Model, KimiLinearModel):
        model.set_vocab = _set_vocab
    sys.argv = ["convert", "--outtype", outtype, "--outfile", str(gguf), str(checkpoint)]
    runpy.run_path(str(source / "convert_hf_to_gguf.py"), run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
