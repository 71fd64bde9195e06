"""The tokens of a vocabulary: all that a tokenizer answers but how text is split into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from milepost.errors import TokenizerError

__all__ = ["TokenTable"]


class TokenTable:
    """A `milepost.chat.tokenizer.Tokenizer` without its `encode`, which each file format adds.

    Args:
        pieces: id -> bytes of the ordinary tokens, at least one.
        specials: name -> id of the special tokens.
        chat_defaults: ``default_chat_template_kwargs`` of tokenizer_config.json.
        specials_file: the file that names the special tokens, for messages.
    """

    def __init__(
        self,
        pieces: Mapping[int, bytes],
        specials: Mapping[str, int],
        chat_defaults: Mapping[str, object],
        *,
        specials_file: str,
    ) -> None:
        self._pieces = dict(pieces)
        self._specials = dict(specials)
        self._names = {token_id: name for name, token_id in specials.items()}
        self._chat_defaults = dict(chat_defaults)
        self._specials_file = specials_file
        self._vocab_size = 1 + max(*self._pieces, *self._names)

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return self._vocab_size

    @property
    def chat_defaults(self) -> Mapping[str, object]:
        """``default_chat_template_kwargs`` of tokenizer_config.json."""
        return self._chat_defaults

    def special(self, name: str) -> int:
        """Id of the special token `name`."""
        token_id = self._specials.get(name)
        if token_id is None:
            raise TokenizerError(
                f"The tokenizer has no special token {name}. Use the {self._specials_file} that was "
                "published with this checkpoint."
            )
        return token_id

    def special_name(self, token_id: int) -> str | None:
        """Name of a special token; None for an ordinary one or an unknown id."""
        return self._names.get(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of an ordinary token; empty for a special token or an unknown id."""
        return self._pieces.get(token_id, b"")

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ordinary tokens; torn UTF-8 becomes U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")
