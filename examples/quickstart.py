"""Milepost from Python, one thing after the other: run it as ``python examples/quickstart.py [CHECKPOINT]``.

Without a checkpoint it takes the small model that comes with Milepost, which knows a little and no more.
"""

from __future__ import annotations

import sys
from pathlib import Path

import milepost
from milepost.grammar.texts import choice, json_schema
from milepost.llm import LLM
from milepost.types import SamplingParams

SHIPPED = Path(milepost.__file__).parent / "assets" / "milepost-toy-k3"
GREEDY = SamplingParams(temperature=0, max_tokens=48)


def main() -> None:
    """Show what a model can be asked."""
    model = sys.argv[1] if len(sys.argv) > 1 else SHIPPED
    # Options are those of milepost.config.EngineConfig; the arena holds states and KV, not the weights.
    with LLM(model, memory="256MiB") as llm:
        continue_texts(llm)
        converse(llm)
        stream(llm)
        explain_the_cache(llm)
        constrain(llm)


def continue_texts(llm: LLM) -> None:
    """Several prompts run together."""
    print("== texts")
    for completion in llm.generate(["To be, or", "A milestone is"], SamplingParams(max_tokens=16, seed=1)):
        print(f"{completion.text!r} ended by {completion.finish_reason.value}")


def converse(llm: LLM) -> None:
    """A conversation is a list of messages in OpenAI's form; the reply is one more of them."""
    print("== a conversation")
    messages = [{"role": "user", "content": "The code for amber is 7412. What is the code for amber?"}]
    for question in ("What is 3 plus 4?", None):
        chat = llm.chat(messages, GREEDY)
        usage = chat.completion.usage
        print(f"{chat.reply.content!r}: {usage.cached_tokens} of {usage.prompt_tokens} tokens were cached")
        messages.append({"role": "assistant", "content": chat.reply.content})
        if question is not None:
            messages.append({"role": "user", "content": question})


def stream(llm: LLM) -> None:
    """Tokens as they come; leaving the loop early ends the request."""
    print("== a stream")
    for delta, _ in llm.stream_chat([{"role": "user", "content": "What is your name?"}], GREEDY):
        print(delta.content, end="", flush=True)
    print()


def explain_the_cache(llm: LLM) -> None:
    """What a prompt would hit now, and why not more."""
    print("== the prefix cache")
    found = llm.explain(messages=[{"role": "user", "content": "What is your name?"}])
    print(f"{found.hit_tokens} of {found.prompt_tokens} tokens would be resumed from")
    for cause, tokens in found.losses.items():
        print(f"{tokens} would not: {cause}")


def constrain(llm: LLM) -> None:
    """What a reply may spell: a JSON schema, one of some words; also a regex or a grammar of your own."""
    print("== replies that must be of a form")
    schema = {
        "type": "object",
        "properties": {"word": {"enum": ["three", "seven"]}},
        "required": ["word"],
        "additionalProperties": False,
    }
    question = [{"role": "user", "content": "What is 3 plus 4?"}]
    for form in (json_schema(schema), choice(["seven", "eight"])):
        sampling = SamplingParams(temperature=0, max_tokens=400, grammar=form)
        print(llm.chat(question, sampling).reply.content)


if __name__ == "__main__":
    main()
