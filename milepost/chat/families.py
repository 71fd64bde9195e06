"""Which chat encoding a model family speaks."""

from __future__ import annotations

from milepost.chat.encoding import ChatEncoding
from milepost.chat.im_form import ImEncoding
from milepost.chat.tokenizer import Tokenizer
from milepost.chat.xtml import XtmlEncoding
from milepost.errors import ConfigError

__all__ = ["chat_encoding"]


def chat_encoding(family: str, tokenizer: Tokenizer) -> ChatEncoding:
    """The chat encoding of a model family.

    Args:
        family: the family's name, as `milepost.model_spec.ModelFamily` has it ("kimi_k3", "kimi_linear").
        tokenizer: the model's tokenizer; it must know the family's markers.

    Raises:
        ConfigError: the family has no chat encoding.
        TokenizerError: the tokenizer lacks one of the family's markers.
    """
    if family == "kimi_k3":
        return XtmlEncoding(tokenizer)
    if family == "kimi_linear":
        return ImEncoding(tokenizer)
    raise ConfigError(f"The model family {family!r} has no chat encoding. Known: kimi_k3, kimi_linear.")
