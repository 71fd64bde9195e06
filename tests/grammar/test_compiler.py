"""The compiler: masks over a model's vocabulary, errors in words, copies that don't disturb each other."""

from __future__ import annotations

import json
import threading

import pytest

from milepost.errors import ExecutionError, RequestError
from milepost.grammar.compiler import GrammarCompiler
from milepost.grammar.texts import (
    choice,
    free_text,
    grammar,
    json_object,
    json_schema,
    lark,
    literal,
    regex,
    sequence,
    token,
)
from milepost.types import Grammar
from tests.grammar.vocabularies import (
    CLOSE,
    END,
    EOS,
    MODEL_VOCAB,
    NUM_WORDS,
    STOPS,
    VOCAB,
    Words,
    accepts,
    compiler,
    may_end,
    splits,
)


def test_every_way_to_split_a_text_into_tokens_is_allowed() -> None:
    grammars = compiler()
    schema = json_schema({"type": "object", "properties": {"ab": {"type": "string"}}, "required": ["ab"]})
    text = '{"ab": "abcé"}'.encode()
    ways = list(splits(text))
    assert len(ways) > 50
    assert all(accepts(grammars, schema, tokens) for tokens in ways)
    assert not any(accepts(grammars, schema, tokens[:-1]) for tokens in ways)


def test_a_stop_token_may_come_at_the_end_only_and_nothing_else_may_then() -> None:
    matcher = compiler().matcher(choice(["ab", "abc"]))
    allowed = [set(matcher.mask().nonzero()[0])]
    for token_id in (ord("a"), ord("b"), ord("c")):
        matcher.take(token_id)
        allowed.append(set(matcher.mask().nonzero()[0]))
    by_bytes = [{Words().token_bytes(int(i)) for i in ids} for ids in allowed]
    assert by_bytes == [{b"a", b"ab", b"abc"}, {b"b", b"bc"}, {b"c", b""}, {b""}]
    assert [ids & {END, EOS} for ids in allowed] == [set(), set(), {END, EOS}, {END, EOS}]
    matcher.take(END)
    assert set(matcher.mask().nonzero()[0]) == {END, EOS}


def test_free_text_holds_no_special_token_and_no_id_that_stands_for_nothing() -> None:
    matcher = compiler().matcher(grammar(sequence(free_text(), token(CLOSE))))
    for token_id in (*b"<|open|>", *"é".encode()):
        mask = matcher.mask()
        assert mask.shape == (MODEL_VOCAB,)
        assert mask[CLOSE] == (token_id != 0xA9)  # not in the middle of a character
        assert not mask[NUM_WORDS:CLOSE].any()
        assert not mask[CLOSE + 1 :].any()
        matcher.take(token_id)


@pytest.mark.parametrize("text", ["start: <[*]>", f"start: <[^{END}]>", "start: <[0-400]>"])
def test_what_stands_for_nothing_is_never_allowed(text: str) -> None:
    grammars = GrammarCompiler(Words(), vocab_size=401, stop_token_ids=STOPS)
    mask = grammars.matcher(lark(text)).mask()
    assert mask.any()
    assert not mask[NUM_WORDS:END].any()
    assert not mask[VOCAB:].any()


def test_a_model_may_know_fewer_tokens_than_its_tokenizer() -> None:
    grammars = GrammarCompiler(Words(), vocab_size=200, stop_token_ids=(199,))
    mask = grammars.matcher(choice(["ab", "é"])).mask()
    assert mask.shape == (200,)
    assert set(mask.nonzero()[0]) == {ord("a"), 0xC3}


@pytest.mark.parametrize(
    ("whole", "words"),
    [
        (regex("("), "unclosed group"),
        (regex("(?=a)b"), "look-around"),
        (regex(r"(a)\1"), "backreferences are not supported"),
        (json_schema({"not": {}}), r'Unimplemented keys: \["not"\]'),
        (json_schema({"type": "array", "uniqueItems": True}), r'Unimplemented keys: \["uniqueItems"\]'),
        (json_schema({"properties": {"a": {"contains": {}}}}), "contains"),
        (json_schema({"type": "string", "format": "colour"}), "Unknown format: colour"),
        (json_schema({"type": "stringg"}), "stringg"),
        (json_schema({"$ref": "https://elsewhere.test/x"}), "elsewhere"),
        (json_schema({"$ref": "#/$defs/x"}), "does not exist"),
        (json_schema({"$ref": "#"}), "nothing that it allows"),
        (json_schema({"type": "string", "minLength": 5, "maxLength": 3}), "Unsatisfiable"),
        (lark("begin: /a/"), "no start rule"),
        (lark('start: "a" y'), "unknown name"),
        (lark('start: "a"\n\n!'), "line 3: "),
        (lark("start: <|nosuch|>"), "unknown special token"),
        (grammar(token(5000)), "too large"),
        (grammar(token(VOCAB + 3)), "no token that it could begin with"),
    ],
)
def test_a_grammar_that_cant_be_used_is_refused_in_the_compilers_words(whole: Grammar, words: str) -> None:
    grammars = compiler()
    for _ in range(2):  # the second time from what is kept
        with pytest.raises(RequestError, match=words) as caught:
            grammars.check(whole, param="response_format")
        assert caught.value.param == "response_format"
        assert "%llguidance" not in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(RequestError, match=words):
        grammars.matcher(whole)


def test_a_model_without_a_stop_token_takes_no_grammar() -> None:
    with pytest.raises(RequestError, match="no token that ends a reply"):
        GrammarCompiler(Words(), vocab_size=VOCAB, stop_token_ids=()).check(json_object())


def test_a_token_that_the_mask_does_not_allow_is_an_error() -> None:
    matcher = compiler().matcher(choice(["ab"]))
    with pytest.raises(ExecutionError, match="does not take token 120"):
        matcher.take(ord("x"))
    for wrong in (MODEL_VOCAB + 7, NUM_WORDS, END):
        with pytest.raises(ExecutionError):
            compiler().matcher(choice(["ab"])).take(wrong)


def test_a_dead_end_is_an_error() -> None:
    matcher = compiler().matcher(grammar(sequence(literal("a"), token(VOCAB + 3))))
    matcher.take(ord("a"))
    with pytest.raises(ExecutionError, match="leaves no token"):
        matcher.mask()


def test_a_lexer_worn_by_one_reply_fails_no_other() -> None:
    """Copies of a compiled grammar share what its lexer has seen, up to a limit."""
    whole = regex("(a|b){1,100000}")
    grammars = compiler()
    early = grammars.matcher(whole)
    early.take(ord("a"))
    long = grammars.matcher(whole)
    for _ in range(30_000):  # the shared limit is reached on the way
        long.take(ord("b"))
    assert may_end(long)
    grammars.matcher(whole).mask()
    for token_id in (ord("b"), ord("a")):
        assert early.mask()[token_id]
        early.take(token_id)
    assert may_end(early)


def test_replies_in_many_threads_dont_disturb_each_other() -> None:
    grammars = compiler()
    whole = json_schema({"type": "array", "items": {"enum": ["abc", 12, True]}, "minItems": 40})
    wrong: list[object] = []

    def reply(which: int) -> None:
        try:
            grammars.check(whole)
            items = [('"abc"', "12", "true")[(which + index) % 3] for index in range(40)]
            text = f"[{','.join(items)}]"
            if not accepts(grammars, whole, list(text.encode())):
                wrong.append(which)
        except Exception as error:  # noqa: BLE001 - a thread's own error would be lost
            wrong.append(error)

    threads = [threading.Thread(target=reply, args=(which,)) for which in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []


def test_only_so_many_grammars_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = compiler()
    for index in range(200):
        grammars.check(choice([f"option {index}"]))
    assert grammars.num_kept == 128
    monkeypatch.setattr("milepost.grammar.compiler._MAX_KEPT_CHARS", 40_000)
    for index in range(6):
        grammars.check(choice([f"{index}" * 10_000]))
    assert grammars.num_kept == 3
    assert accepts(grammars, choice(["option 3"]), [*b"option 3"])


@pytest.mark.parametrize("num_properties", [600, 2000])
def test_an_object_may_have_many_optional_properties(num_properties: int) -> None:
    properties = {f"k{i}": {"type": "string"} for i in range(num_properties)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    text = json.dumps({f"k{num_properties - 1}": "a"}, separators=(",", ":"))
    assert accepts(compiler(), json_schema(schema), [*text.encode(), END])
