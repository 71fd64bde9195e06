"""A reply is the same however it is cut into outputs, and a cut-off one is a beginning of the whole."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.chat.encoding import ChatEncoding, ChatOptions
from milepost.chat.families import chat_encoding
from milepost.chat.reply import ReplyParser, collect_reply
from milepost.chat.templates.form import TemplateEncoding
from milepost.chat.templates.sandbox import ChatTemplate
from milepost.chat.tokenizer import Tokenizer
from milepost.types import FinishReason
from tests.chat.reply_streams import Outcome, outcome, parsed, spelled_in_bytes, stopped_stream, stream

USER = {"role": "user", "content": "x"}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}{{ '<think>' if thinking }}"


def xml(text: str) -> str:
    """K3's tags in short: ``[tag a="b"]`` opens and ``[/tag]`` closes."""
    text = re.sub(r"\[/([a-z]+)\]", r"<|close|>\1<|sep|>", text)
    return re.sub(r"\[([a-z]+(?: [^\]]*)?)\]", r"<|open|>\1<|sep|>", text)


# name -> (form, whether it thinks, the reply, what a client gets)
K3 = {
    "reasoning, content, two calls": (
        (
            'hm é[/think][response]so 的[/response][tools][call tool="f&quot;" index="1"]'
            '[argument key="s" type="string"]a "é"\n[/argument][argument key="n" type="number"]1e2[/argument]'
            '[/call][call tool="g" index="2"][/call][/tools][/message]'
        ),
        ("so 的", "hm é", [('f"', '{"s": "a \\"é\\"\\n", "n": 1e2}'), ("g", "{}")]),
    ),
    "every type": (
        (
            '[/think][response][/response][tools][call tool="f" index="1"]'
            '[argument key="b" type="boolean"]true[/argument][argument key="z" type="null"]null[/argument]'
            '[argument key="o" type="object"] {"q": ["é"]}[/argument][/call][/tools][/message]'
        ),
        ("", "", [("f", '{"b": true, "z": null, "o": {"q": ["é"]}}')]),
    ),
    "not what it claims": (
        '[/think][tools][call tool="f"][argument key="w" type="number"]1"x[/argument][/call]',
        ("", "", [("f", '{"w": "1\\"x"}')]),
    ),
    "raw arguments": (
        '[/think][tools][call tool="f" index="1"][json type="object"]{"a": "é}[/json][/call][/tools]',
        ("", "", [("f", '{"a": "é}')]),
    ),
    "unclosed": (
        (
            '[/think][response]a[tools]\n[call tool="f"][argument key="k"]v[call tool="g"]stray'
            '[argument key="n" type="number"]1'
        ),
        ("astray", "", [("f", '{"k": "v"}'), ("g", '{"n": 1}')]),
    ),
    "no form at all": (
        "a<|sep|>b<|open|>c<|close|>d[/nothing]e[odd]f[/message]g[/think]h",
        # Tags that never were tags are text.
        ("fgh", "abcde", []),
    ),
}
LINEAR = {
    "two calls": (
        (
            "so 的<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
            '{"s": "é"}<|tool_call_end|>\n<|tool_call_begin|>functions.g.h:1<|tool_call_argument_begin|>'
            "<|tool_call_end|><|tool_calls_section_end|>"
        ),
        ("so 的", "", [("f", '{"s": "é"}'), ("g.h", "{}")]),
    ),
    "malformed": (
        (
            "a<|tool_call_argument_begin|>b<|tool_call_begin|> f <|tool_call_argument_begin|>{1"
            "<|tool_call_begin|>g<|tool_call_end|>c<|tool_calls_section_end|>d<|tool_call_begin|>functions.h:3"
        ),
        ("abcd", "", [("f", "{1"), ("g", "{}"), ("h", "{}")]),
    ),
}
TEXT = {
    "reasoning, content, two calls": (
        (
            'hm < é</think>\n\nso </thin <tool_call>\n{"name": "f", "arguments": {"s": "}\\"é", "l": [1]}}\n'
            '</tool_call>\n<tool_call>{"arguments": {}, "name": "g"}</tool_call>'
        ),
        ("\n\nso </thin ", "hm < é", [("f", '{"s": "}\\"é", "l": [1]}'), ("g", "{}")]),
    ),
    "malformed": (
        (
            '</think><tool_call>oops</tool_call> <tool_call>{"name": "f", "arguments": {"a": 1} x</tool_call>'
            'b<tool_call>{"'
        ),
        ('<tool_call>oops</tool_call>  xb<tool_call>{"', "", [("f", '{"a": 1}')]),
    ),
}
CASES = [
    *(("k3", name) for name in K3),
    *(("linear", name) for name in LINEAR),
    *(("text", name) for name in TEXT),
]


@pytest.fixture(scope="module")
def forms(k3_tokenizer: Tokenizer, im_tool_tokenizer: Tokenizer) -> dict[str, tuple[Tokenizer, ChatEncoding]]:
    template = TemplateEncoding(ChatTemplate(TEMPLATE, "it"), k3_tokenizer, {}, "think-tags+hermes")
    return {
        "k3": (k3_tokenizer, chat_encoding("kimi_k3", k3_tokenizer)),
        "linear": (im_tool_tokenizer, chat_encoding("kimi_linear", im_tool_tokenizer)),
        "text": (k3_tokenizer, template),
    }


Case = tuple[Tokenizer, Callable[[], ReplyParser], list[int], Outcome]


def prepared(forms: dict[str, tuple[Tokenizer, ChatEncoding]], form: str, name: str) -> Case:
    tokenizer, encoding = forms[form]
    text, expected = {"k3": K3, "linear": LINEAR, "text": TEXT}[form][name]
    prompt = encoding.encode([USER], ChatOptions(thinking=None if form == "linear" else True))
    end = "<|im_end|>" if form == "linear" else "<|end_of_msg|>"
    ids = spelled_in_bytes(tokenizer, (xml(text) if form == "k3" else text) + end)
    return tokenizer, lambda: encoding.reply_parser(prompt), ids, expected


@pytest.mark.parametrize(("form", "name"), CASES)
def test_every_cut_in_two(forms: dict[str, tuple[Tokenizer, ChatEncoding]], form: str, name: str) -> None:
    tokenizer, parser, ids, expected = prepared(forms, form, name)
    for cut in range(len(ids) + 1):
        assert parsed(parser, tokenizer, ids, [cut]) == expected, cut
    assert parsed(parser, tokenizer, ids, range(1, len(ids))) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("form", "name"), CASES)
def test_every_cut_in_three(forms: dict[str, tuple[Tokenizer, ChatEncoding]], form: str, name: str) -> None:
    tokenizer, parser, ids, expected = prepared(forms, form, name)
    for cuts in itertools.combinations(range(1, len(ids)), 2):
        assert parsed(parser, tokenizer, ids, cuts) == expected, cuts


@settings(deadline=None, max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize(("form", "name"), CASES)
def test_any_cuts(
    forms: dict[str, tuple[Tokenizer, ChatEncoding]], form: str, name: str, data: st.DataObject
) -> None:
    tokenizer, parser, ids, expected = prepared(forms, form, name)
    cuts = data.draw(st.sets(st.integers(1, len(ids) - 1)).map(sorted))
    assert parsed(parser, tokenizer, ids, cuts) == expected


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.ABORT])
@pytest.mark.parametrize(
    ("form", "name"), [case for case in CASES if "calls" in case[1] or "type" in case[1]]
)
def test_a_reply_that_is_cut_off_is_a_beginning_of_the_whole(
    forms: dict[str, tuple[Tokenizer, ChatEncoding]], form: str, name: str, reason: FinishReason
) -> None:
    tokenizer, parser, ids, (content, reasoning, calls) = prepared(forms, form, name)
    for length in range(1, len(ids)):
        found, thought, begun = parsed(parser, tokenizer, ids[:length], reason=reason)
        # Half a character at the end is shown as such, and so is half a tag where tags are text.
        if form == "text":
            found = re.sub(r"(?s)\s*(<tool_call>.*|</?[a-z_]*\Z)", "", found)
            thought = re.sub(r"</?[a-z_]*\Z", "", thought)
        assert content.startswith(found.rstrip("\ufffd")), length
        assert reasoning.startswith(thought.rstrip("\ufffd")), length
        for (name_begun, arguments), (whole_name, whole) in zip(begun, calls, strict=False):
            assert name_begun == whole_name
            assert whole.startswith(arguments.rstrip("\ufffd")), length


@pytest.mark.parametrize(("form", "name"), CASES)
def test_a_stop_string_may_end_a_reply_anywhere(
    forms: dict[str, tuple[Tokenizer, ChatEncoding]], form: str, name: str
) -> None:
    tokenizer, parser, ids, _ = prepared(forms, form, name)
    ids = ids[:-1]  # the stop string ends it, no token
    total = len("".join(news.text for news in stream(tokenizer, ids, ())))
    for num_shown in range(total):
        ways = []
        for cuts in ((), range(1, len(ids)), range(3, len(ids), 7)):
            fresh = parser()
            deltas = [fresh.feed(news) for news in stopped_stream(tokenizer, ids, cuts, num_shown)]
            ways.append(outcome(collect_reply(deltas)))
        assert ways[0] == ways[1] == ways[2], num_shown
        content, reasoning, calls = ways[0]
        # Nothing behind the stop string is told.
        assert len(content) + len(reasoning) <= num_shown
        assert all(len(name) <= num_shown for name, _ in calls)


@settings(deadline=None, max_examples=150)
@given(
    soup=st.lists(
        st.sampled_from(
            [
                *("<|open|>", "<|close|>", "<|sep|>", "[think]", "[/think]", "[response]", "[/response]"),
                *("[tools]", "[/tools]", '[call tool="f"]', "[/call]", '[argument key="a"]', "[/argument]"),
                *('[argument key="n" type="number"]', "[json]", "[/json]", "[/message]", "[odd]", "word"),
                *("é", " ", "1", "</think>", "<tool_call>", "</tool_call>", '{"name": "f", "arguments": {'),
                *("<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"),
                *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            ]
        ),
        max_size=14,
    ),
    data=st.data(),
    form=st.sampled_from(["k3", "linear", "text"]),
    reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
)
def test_any_soup_is_read_alike_and_loses_no_text(
    forms: dict[str, tuple[Tokenizer, ChatEncoding]],
    soup: list[str],
    data: st.DataObject,
    form: str,
    reason: FinishReason,
) -> None:
    tokenizer, encoding = forms[form]
    prompt = encoding.encode([USER], ChatOptions(thinking=None if form == "linear" else True))
    pieces = [f"w{i}w" if piece == "word" else piece for i, piece in enumerate(soup)]
    if form == "k3":
        text = xml("".join(piece for piece in pieces if not piece.startswith("<|tool")))
    elif form == "linear":
        text = "".join(piece for piece in pieces if piece not in ("<|open|>", "<|close|>", "<|sep|>"))
    else:
        text = "".join(piece for piece in pieces if not piece.startswith("<|"))
    end = "<|im_end|>" if form == "linear" else "<|end_of_msg|>"
    ids = spelled_in_bytes(tokenizer, text + (end if reason is FinishReason.STOP else " "))

    def fresh() -> ReplyParser:
        return encoding.reply_parser(prompt)

    whole = parsed(fresh, tokenizer, ids, reason=reason)
    cuts = data.draw(st.sets(st.integers(1, len(ids))).map(sorted))
    assert parsed(fresh, tokenizer, ids, [cut for cut in cuts if cut < len(ids)], reason) == whole
    seen = f"{whole[0]} {whole[1]} {whole[2]}"
    # Names of tags and of functions that never came to be are no text.
    in_tags = re.findall(r"<\|(?:open|close|tool_call_begin)\|>((?:(?!<\|).)*)(?:<\|sep\|>|\Z)", text)
    lost = set(re.findall(r"w\d+w", text)) - set(re.findall(r"w\d+w", " ".join(in_tags)))
    assert all(word in seen for word in lost), (text, whole)


@pytest.mark.parametrize(("form", "name"), [case for case in CASES if "two calls" in case[1]])
def test_whether_a_call_was_cut_off_is_told(
    forms: dict[str, tuple[Tokenizer, ChatEncoding]], form: str, name: str
) -> None:
    tokenizer, parser, ids, _ = prepared(forms, form, name)
    for length in range(1, len(ids)):
        fresh = parser()
        deltas = [fresh.feed(news) for news in stream(tokenizer, ids[:length], (), FinishReason.LENGTH)]
        calls = collect_reply(deltas).tool_calls
        broken = bool(calls) and not _is_json(calls[-1].arguments)
        # Kimi-Linear's is whole only with its last marker, which follows the brace.
        assert deltas[-1].cut_call == (broken or (form == "linear" and ids[length - 1] == ord("}")))
    fresh = parser()
    assert not any(fresh.feed(news).cut_call for news in stream(tokenizer, ids, ()))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
