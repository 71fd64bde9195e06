"""Where a checkpoint's chat template is, and what its tokenizer calls its special tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from milepost.chat.templates.sandbox import ChatTemplate
from milepost.chat.tokenizer import CONFIG_FILE
from milepost.errors import ConfigError

__all__ = ["read_template", "special_token_names", "template_of_checkpoint"]

TEMPLATE_FILE = "chat_template.jinja"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


def read_template(path: Path) -> ChatTemplate:
    """Compile the template of a file.

    Raises:
        ConfigError: it can't be read or is no template.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"chat_template {path} can't be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"chat_template {path} must be UTF-8 text ({error}).") from None
    return ChatTemplate(source, str(path))


def template_of_checkpoint(folder: Path, config: Mapping[str, object]) -> ChatTemplate | None:
    """The template that a checkpoint comes with: a file of its own, or tokenizer_config.json's.

    Args:
        folder: the checkpoint.
        config: the contents of its tokenizer_config.json.

    Raises:
        ConfigError: it can't be read or is no template.
    """
    if (folder / TEMPLATE_FILE).exists():
        return read_template(folder / TEMPLATE_FILE)
    given = config.get("chat_template")
    if isinstance(given, list):  # several by name
        named = {entry.get("name"): entry.get("template") for entry in given if isinstance(entry, dict)}
        given = named.get("default")
    if given is None:
        return None
    if not isinstance(given, str):
        raise ConfigError(f"{CONFIG_FILE}: chat_template must be text. Given: {given!r:.60}.")
    return ChatTemplate(given, f"{CONFIG_FILE}: chat_template")


def special_token_names(config: Mapping[str, object]) -> dict[str, str]:
    """``bos_token`` and its like, as templates know them."""
    found: dict[str, str] = {}
    for name in _SPECIAL_TOKENS:
        given = config.get(name)
        content = given.get("content") if isinstance(given, Mapping) else given
        if isinstance(content, str):
            found[name] = content
    return found
