"""Which chat encoding a model speaks."""

from __future__ import annotations

from pathlib import Path

from milepost.chat.encoding import ChatEncoding
from milepost.chat.im_form import ImEncoding
from milepost.chat.tokenizer import Tokenizer, read_tokenizer_config
from milepost.chat.xtml import XtmlEncoding
from milepost.errors import ConfigError

__all__ = ["chat_encoding"]


def chat_encoding(
    family: str,
    tokenizer: Tokenizer,
    folder: Path | None = None,
    *,
    template: str | None = None,
    reply_parser: str | None = None,
) -> ChatEncoding:
    """The chat encoding of a model: a template that was given, else the family's own, else the checkpoint's.

    Args:
        family: the family's name, as `milepost.model_spec.ModelFamily` has it ("kimi_k3", "kimi_linear").
        tokenizer: the model's tokenizer; it must know the family's markers.
        folder: the checkpoint, whose files name special tokens and may hold a template.
        template: a file with a Hugging Face chat template.
        reply_parser: how the replies to a template's prompts mark their parts.

    Raises:
        ConfigError: the family has no chat encoding, or the template can't be used.
        TokenizerError: the tokenizer lacks one of the family's markers.
    """
    if template is None and reply_parser is None and family == "kimi_k3":
        return XtmlEncoding(tokenizer)
    if template is None and reply_parser is None and family == "kimi_linear":
        return ImEncoding(tokenizer)
    return _of_template(family, tokenizer, folder, template, reply_parser)


def _of_template(
    family: str, tokenizer: Tokenizer, folder: Path | None, template: str | None, reply_parser: str | None
) -> ChatEncoding:
    # Jinja is needed by nothing else.
    from milepost.chat.templates.form import TemplateEncoding
    from milepost.chat.templates.sources import read_template, special_token_names, template_of_checkpoint

    config = {} if folder is None else read_tokenizer_config(folder, required=False)
    own = family in ("kimi_k3", "kimi_linear")
    found = None
    if template is not None:
        found = read_template(Path(template))
    elif own:
        raise ConfigError(
            f"reply_parser is for chat templates; {family} has a form of its own. "
            f"Leave it out, or give a chat template too. Given: {reply_parser!r}."
        )
    elif folder is not None:
        found = template_of_checkpoint(folder, config)
    if found is None:
        raise ConfigError(
            f"The model family {family!r} has no chat encoding, and the checkpoint no chat template. "
            "Known: kimi_k3, kimi_linear. Give one with --chat-template."
        )
    return TemplateEncoding(found, tokenizer, special_token_names(config), reply_parser or "plain")
