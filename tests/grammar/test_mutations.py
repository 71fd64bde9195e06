"""Grammars with a part out of place: an answer or an error of ours, and never anything else."""

from __future__ import annotations

import random

from milepost.errors import ExecutionError, RequestError
from milepost.grammar.texts import lark
from milepost.types import Grammar
from tests.grammar.vocabularies import STOPS, compiler

SEEDS = (
    'start: "a" x*\nx: /[a-c]+/ | %json {"type": "object", "properties": {"a": {"type": "number"}}}\n',
    'start: a "b"\na[stop="x", max_tokens=3]: /[a-z]*/\n%ignore / +/\n',
    'start: %lark {\nstart[suffix="ab"]: /(?s:.*)/\n} <[272-275]> T{2,5}\nT: /[a-z]/ & ~"q"\n',
    'start: x::0x1\nx::_: "a" %if bit_clear(0) | "b"\n',
    'start: (a|b)~2..5\na: "é"i\nb: %regex {"substring_words": "a b c"} <|open|>?\n',
    "%import common.INT\nstart[capture]: INT @x | _y -> z\n_y: /y/\n",
)
PARTS = (*'"/{}()[]<>|*+?~:&@\\\n', "%json", "%lark", "..", "0", "99999", *" ".join(SEEDS).split())


def mutated(chance: random.Random) -> Grammar:
    text = list(chance.choice(SEEDS))
    for _ in range(chance.randrange(1, 6)):
        place = chance.randrange(len(text) + 1)
        if chance.random() < 0.3:
            del text[place : place + chance.randrange(1, 4)]
        else:
            text[place:place] = chance.choice(PARTS)
    return lark("".join(text) + " ")


def test_a_broken_grammar_is_refused_or_obeyed() -> None:
    chance, grammars = random.Random(5), compiler()
    followed = 0
    for _ in range(1500):
        whole = mutated(chance)
        try:
            grammars.check(whole)
            matcher = grammars.matcher(whole)
            for _ in range(8):
                token_id = int(chance.choice(matcher.mask().nonzero()[0].tolist()))
                matcher.take(token_id)
                followed += 1
                if token_id in STOPS:
                    break
        except (RequestError, ExecutionError) as error:
            assert str(error)  # noqa: PT017 - both outcomes are right
    assert followed > 300
