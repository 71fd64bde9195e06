"""Tokenizers, chat encodings, and parsers of replies.

Start from `load_tokenizer` and `chat_encoding`.
"""

from milepost.chat.encoding import ChatEncoding, EncodedPrompt
from milepost.chat.families import chat_encoding
from milepost.chat.messages import Message, Role, ToolCall
from milepost.chat.reply import Reply, ReplyDelta, ReplyParser, collect_reply
from milepost.chat.tokenizer import Tokenizer
from milepost.chat.tokenizer_folder import load_tokenizer

__all__ = [
    "ChatEncoding",
    "EncodedPrompt",
    "Message",
    "Reply",
    "ReplyDelta",
    "ReplyParser",
    "Role",
    "Tokenizer",
    "ToolCall",
    "chat_encoding",
    "collect_reply",
    "load_tokenizer",
]
