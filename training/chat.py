"""Kimi K3's chat form (XTML) without a think channel, and which of its tokens the model learns to say."""

from dataclasses import dataclass
from functools import cached_property

from training.cases import Message
from training.tokenizer import ToyTokenizer


@dataclass
class Rendered:
    """Token ids; ``answers`` are the half-open ranges that an assistant says, closing markers included."""

    ids: list[int]
    answers: list[tuple[int, int]]


class ChatForm:
    """Renders messages to token ids; marker ids are inserted here and never come from text."""

    def __init__(self, tokenizer: ToyTokenizer) -> None:
        self.tokenizer = tokenizer
        special = tokenizer.specials
        self._open, self._close = special["<|open|>"], special["<|close|>"]
        self._sep, self.end_of_msg = special["<|sep|>"], special["<|end_of_msg|>"]

    def render(self, messages: list[Message]) -> Rendered:
        """A whole dialogue."""
        rendered = Rendered([], [])
        for message in messages:
            if message.role == "assistant":
                rendered.ids += self.generation_prefix
                start = len(rendered.ids)
                rendered.ids += self.answer(message.content)
                rendered.answers.append((start, len(rendered.ids)))
            else:
                rendered.ids += self._opening(f'message role="{message.role}"')
                rendered.ids += self.tokenizer.encode(message.content) + self._end_of_message
        return rendered

    def prompt(self, messages: list[Message]) -> list[int]:
        """A dialogue up to where the assistant's answer starts."""
        return self.render(messages).ids + self.generation_prefix

    def answer(self, text: str) -> list[int]:
        """What the assistant says after the generation prefix, to the end of its message."""
        return self.tokenizer.encode(text) + self._closing("response") + self._end_of_message

    @cached_property
    def generation_prefix(self) -> list[int]:
        """Opens an assistant message and its response channel."""
        return self._opening('message role="assistant"') + self._opening("response")

    @cached_property
    def _end_of_message(self) -> list[int]:
        return [*self._closing("message"), self.end_of_msg]

    def _opening(self, tag: str) -> list[int]:
        return [self._open, *self.tokenizer.encode(tag), self._sep]

    def _closing(self, tag: str) -> list[int]:
        return [self._close, *self.tokenizer.encode(tag), self._sep]
