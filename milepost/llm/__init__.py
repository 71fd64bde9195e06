"""From a checkpoint folder to text: the composition root that sees both halves.

    load_engine(config)   every part of a running engine, from files
    LLM(folder)           the same for Python users: generate, chat, stream

    with LLM("path/to/checkpoint", memory="2GiB") as llm:
        print(llm.chat([{"role": "user", "content": "Hello"}]).reply.content)

Importing it loads torch, which takes seconds.
"""

from milepost.llm.llm import LLM
from milepost.llm.loading import LoadedEngine, load_engine
from milepost.llm.results import ChatCompletion, Completion
from milepost.llm.streams import ChatStream, TokenStream

__all__ = [
    "LLM",
    "ChatCompletion",
    "ChatStream",
    "Completion",
    "LoadedEngine",
    "TokenStream",
    "load_engine",
]
