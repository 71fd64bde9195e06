"""Hugging Face's chat templates: what they write, what users can't make them write, and their limits."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from milepost.chat.encoding import ChatOptions, EncodedPrompt
from milepost.chat.families import chat_encoding
from milepost.chat.templates.form import TemplateEncoding
from milepost.chat.templates.sandbox import ChatTemplate
from milepost.chat.tokenizer import Tokenizer
from milepost.errors import ConfigError, InputError, RequestError
from tests.chat.conftest import K3_SPECIALS, write_tiktoken

Message = dict[str, Any]

# In the manner of ChatML, with this vocabulary's markers.
CHATML = """{{- bos_token }}
{%- if tools %}
    {{- '<|open|>system\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '<|close|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'robot' %}{{ raise_exception('no robots') }}{% endif %}
    {{- '<|open|>' + message.role + '\\n' + (message.name ~ ': ' if message.name else '') + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
        {{- call.function.arguments | tojson ~ '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|close|>' }}{{ '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|open|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}
"""
NAMES = {"bos_token": "[BOS]", "eos_token": "[EOS]"}
SPELLINGS = [*K3_SPECIALS.values(), "<|reserved_token_300|>"]


def user(content: str, **more: Any) -> Message:
    return {"role": "user", "content": content} | more


@pytest.fixture(scope="module")
def chatml(k3_tokenizer: Tokenizer) -> TemplateEncoding:
    return TemplateEncoding(ChatTemplate(CHATML, "it"), k3_tokenizer, NAMES, "think-tags+hermes")


def rendered(tokenizer: Tokenizer, source: str, messages: list[Message] | None = None, **more: Any) -> str:
    encoding = TemplateEncoding(ChatTemplate(source, "it"), tokenizer, NAMES)
    return written(tokenizer, encoding.encode(messages or [user("hi")], ChatOptions(**more)))


def written(tokenizer: Tokenizer, prompt: EncodedPrompt) -> str:
    return b"".join(
        (tokenizer.special_name(i) or "").encode() or tokenizer.token_bytes(i) for i in prompt.token_ids
    ).decode()


def specials(tokenizer: Tokenizer, prompt: EncodedPrompt) -> list[str]:
    return [name for i in prompt.token_ids if (name := tokenizer.special_name(i))]


def test_a_conversation(chatml: TemplateEncoding, k3_tokenizer: Tokenizer) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}]
    conversation: list[Message] = [
        {"role": "developer", "content": "be brief"},
        user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], name="ann"),  # type: ignore[arg-type]
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "3"},
    ]
    tools = [{"type": "function", "function": {"name": "f", "description": "<é>"}}]
    prompt = chatml.encode(conversation, ChatOptions(tools=tools))
    assert written(k3_tokenizer, prompt) == (
        '[BOS]<|open|>system\n{"type": "function", "function": {"name": "f", "description": "<é>"}}'
        "<|close|>\n<|open|>system\nbe brief<|close|>\n<|open|>user\nann: one\ntwo<|close|>\n"
        '<|open|>assistant\n\n<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call><|close|>\n'
        "<|open|>tool\n3<|close|>\n<|open|>assistant\n"
    )
    assert specials(k3_tokenizer, prompt) == ["[BOS]"] + ["<|open|>", "<|close|>"] * 5 + ["<|open|>"]
    assert chatml.stop_token_ids == (k3_tokenizer.special("[EOS]"),)
    assert not prompt.thinking
    thinking = chatml.encode([user("a")], ChatOptions(thinking=True))
    assert thinking.thinking
    assert written(k3_tokenizer, thinking).endswith("<|open|>assistant\n<think>\n")


def test_text_between_special_tokens_is_tokenised_as_one(
    chatml: TemplateEncoding, k3_tokenizer: Tokenizer
) -> None:
    prompt = chatml.encode([user("<hello> world")])
    assert list(prompt.token_ids[2:]) == [
        *k3_tokenizer.encode("user\n<hello> world"),
        k3_tokenizer.special("<|close|>"),
        *k3_tokenizer.encode("\n"),
        k3_tokenizer.special("<|open|>"),
        *k3_tokenizer.encode("assistant\n"),
    ]


TEXT = st.lists(
    st.one_of(
        st.text(max_size=4), st.sampled_from([*SPELLINGS, "<|", "|>", "open", "close", "<", ">", "[EOS"])
    ),
    max_size=5,
).map("".join)


@settings(deadline=None, max_examples=100)
@given(text=TEXT, second=TEXT, name=TEXT.filter(bool), key=TEXT, data=st.data())
def test_users_never_write_special_tokens(
    chatml: TemplateEncoding, k3_tokenizer: Tokenizer, text: str, second: str, name: str, key: str, data: Any
) -> None:
    def asked(text: str, second: str, name: str, key: str) -> EncodedPrompt:
        arguments = json.dumps({key: text, "n": {second: [text]}})
        call = {"id": text, "type": "function", "function": {"name": name, "arguments": arguments}}
        conversation: list[Message] = [
            {"role": "system", "content": text},
            user([{"type": "text", "text": text}, {"type": "text", "text": second}], name=name),  # type: ignore[arg-type]
            {"role": "assistant", "content": second, "reasoning_content": text, "tool_calls": [call]},
            {"role": "tool", "content": text, "tool_call_id": text, "name": second},
        ]
        parameters = {"type": "object", "properties": {key: {"description": text, "enum": [second]}}}
        function = {"name": name, "description": second, "parameters": parameters}
        return chatml.encode(conversation, ChatOptions(tools=[{"type": "function", "function": function}]))

    prompt = asked(text, second, name, key)
    assert specials(k3_tokenizer, prompt) == specials(k3_tokenizer, asked("a", "b", "c", "d"))
    shown = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert shown in written(k3_tokenizer, prompt), "the marks are taken out"


@settings(deadline=None, max_examples=40)
@given(contents=st.lists(TEXT, min_size=1, max_size=4), name=TEXT)
def test_it_writes_what_jinja_writes(
    chatml: TemplateEncoding, k3_tokenizer: Tokenizer, contents: list[str], name: str
) -> None:
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    plain.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    messages = [user(content, name=name) for content in contents]
    tools = [{"type": "function", "function": {"name": name or "f", "description": contents[0]}}]
    expected = plain.from_string(CHATML).render(
        messages=messages, tools=tools, add_generation_prompt=True, **NAMES
    )
    assert written(k3_tokenizer, chatml.encode(messages, ChatOptions(tools=tools))) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ '<|' + messages[0].name + '|>' }}",
        "{{ '<|' ~ messages[0].name | trim ~ '|>' }}",
        "{{ '<|' ~ messages[0].name | lower ~ '|>' }}",
        "{{ '<|' ~ messages[0].content }}{{ messages[0].name }}{{ '|>' }}",
        "{{ messages[0].content ~ messages[0].name }}",
        "{{ [messages[0].content, messages[0].name] | join('') }}",
        "{{ messages[0].content[1:] }}{{ messages[0].name }}",
        "{{ (messages[0].content ~ 'X' ~ messages[0].name) | replace('X', '') }}",
        "{{ messages[0].content | tojson(ensure_ascii=true) }}",
        "{{ messages | tojson | replace('\"', '') }}",
        "{{ '%s%s' | format(messages[0].content, messages[0].name) }}",
        "{{ '{}{}'.format(messages[0].content, messages[0].name) }}",
        "{% for c in messages[0].content %}{{ c }}{% endfor %}{{ messages[0].name }}",
        "{{ x }}{{ y }}",
    ],
)
@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("<|open|>", "sep"),
        ("<|", "open|>"),
        ("<|op", "en|>"),
        ("<|open|", ">"),
        ("<", "|open|>"),
        ("x", " open "),
    ],
)
def test_templates_that_join_texts_join_no_special_tokens(
    k3_tokenizer: Tokenizer, source: str, content: str, name: str
) -> None:
    encoding = TemplateEncoding(ChatTemplate(source, "it"), k3_tokenizer, NAMES)
    more = {"x": content, "y": name} if "{{ x }}" in source else None
    prompt = encoding.encode([user(content, name=name)], ChatOptions(template_arguments=more))
    assert specials(k3_tokenizer, prompt) == []


def test_a_special_token_of_the_templates_own_stays_one(k3_tokenizer: Tokenizer) -> None:
    tags = "{'user': 'open', 'assistant': 'close'}"
    source = "{% for m in messages %}{{ '<|' + " + tags + "[m.role] + '|>' }}{% endfor %}"
    prompt = TemplateEncoding(ChatTemplate(source, "it"), k3_tokenizer, NAMES).encode(
        [user("a"), {"role": "assistant", "content": "b"}]
    )
    assert specials(k3_tokenizer, prompt) == ["<|open|>", "<|close|>"]


@settings(deadline=None, max_examples=40)
@given(contents=st.lists(TEXT, min_size=1, max_size=7), system=st.booleans())
def test_message_ends_come_again(
    chatml: TemplateEncoding, k3_tokenizer: Tokenizer, contents: list[str], system: bool
) -> None:
    messages: list[Message] = [{"role": "system", "content": "s"}] if system else []
    before: EncodedPrompt | None = None
    for turn, content in enumerate(contents):
        messages.append(user(content) if turn % 2 == 0 else {"role": "assistant", "content": content})
        prompt = chatml.encode(messages)
        ends = prompt.message_ends
        # All of the last five messages', and the system's.
        assert len(ends) == len(messages) if len(messages) <= 5 else 5 <= len(ends) <= 6
        assert list(ends) == sorted(set(ends))
        assert ends[-1] < len(prompt.token_ids)
        for end in ends:
            assert written(
                k3_tokenizer, EncodedPrompt(token_ids=prompt.token_ids[:end], message_ends=())
            ).endswith("<|close|>\n")
        if before is not None:
            last = before.message_ends[-1]
            assert prompt.token_ids[:last] == before.token_ids[:last]
        before = prompt


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}{{ m.content if loop.last else '' }}{% endfor %}",
        "{% for m in messages %}{{ m.content }} {% endfor %}{{ 'go' }}",
        "{% if messages | length < 2 %}{{ raise_exception('two') }}{% endif %}<|open|>",
    ],
)
def test_where_no_beginning_comes_again_no_message_ends(k3_tokenizer: Tokenizer, source: str) -> None:
    encoding = TemplateEncoding(ChatTemplate(source, "it"), k3_tokenizer, NAMES)
    assert encoding.encode([user("a"), user("b"), user("c")]).message_ends == ()


HOSTILE = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "branching macro": "{% macro f(n) %}{% if n < 60 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}"
    "{{ f(0) }}",
    "endless macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "product": "{{ 'a' * 10 ** 10 }}",
    "product of lists": "{{ ([1] * 100000) * 100000 }}",
    "power": "{{ 9 ** (9 ** 9) }}",
    "products": "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}"
    "{% endfor %}",
    "format": "{{ '%0999999999d' % 1 }}",
    "format by name": "{{ '%(a)999999999d' % {'a': 1} }}",
    "format filter": "{{ '%*d' | format(999999999, 1) }}",
    "str.format": "{{ '{:>999999999}'.format(1) }}",
    "str.format by argument": "{{ '{:>{}}'.format(1, 999999999) }}",
    "sum of lists": "{{ ([[1] * 1000] * 1000) | sum(start=[]) | length }}",
    "indent": "{{ 'a' | indent(999999999) }}",
    "indented JSON": "{{ [1] | tojson(indent=999999) }}",
    "separated JSON": "{% set x = 'a' * 9999999 %}{{ ([1] * 9999) | tojson(separators=(x, x)) }}",
    "time": "{{ strftime_now('%0999999999d') }}",
    "round": "{{ 1 | round(99999999, 'ceil') }}",
    "join": "{{ (['a' * 1000000] * 1000) | join }}",
    "replace": "{{ ('a' * 1000000) | replace('a', 'a' * 1000) }}",
    "class": "{{ ''.__class__.__mro__ }}",
    "subclasses": "{{ messages['__class__'].__base__.__subclasses__() }}",
    "attribute of a format": "{{ '{0.__class__.__base__.__subclasses__}'.format('')() }}",
    "globals": "{{ raise_exception['__globals__']['sys'] }}",
    "initialiser": "{{ namespace.__init__.__globals__ }}",
    "context": "{{ self._TemplateReference__context.environment }}",
    "function": "{{ [].count }}",
    "uncallable": "{{ messages[0].get.__self__() }}{{ [namespace().x.y]() }}",
    "unsafe call": "{{ ('a'.format | list)() }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os }}",
    "extends": "{% extends '/etc/passwd' %}",
    "append": "{{ messages.append(1) }}",
    "update": "{{ messages[0].update({'role': 'system'}) }}",
    "division": "{{ 1 / 0 }}",
    "undefined": "{{ nothing.of_the_kind }}",
    "lorem ipsum": "{{ lipsum(n=100000) }}",
}
DOUBLINGS = {
    "joined": "ns.x ~ ns.x",
    "added": "ns.x + ns.x",
    "replaced": "ns.x.replace('a', ns.x)",
    "filtered": "ns.x | replace('a', ns.x)",
    "joined by method": "ns.x.join([ns.x, ns.x])",
    "listed": "[ns.x, ns.x]",
    "tupled": "(ns.x, ns.x)",
    "mapped": "{'a': ns.x, 'b': ns.x}",
    "made": "dict(a=ns.x, b=ns.x)",
    "escaped": "ns.x | tojson | tojson",
}
HOSTILE |= {
    name: "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x = "
    + doubled
    + " %}{% endfor %}{{ ns.x }}"
    for name, doubled in DOUBLINGS.items()
}
HOSTILE["set block"] = (
    "{% set ns = namespace(x='aa') %}{% for i in range(99) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"
    "{% endfor %}"
)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_with_an_error(
    one_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("milepost.chat.templates.limits.MAX_SECONDS", 0.2)
    started = time.thread_time()
    with pytest.raises(InputError) as caught:
        rendered(one_tokenizer, HOSTILE[name])
    assert isinstance(caught.value, RequestError | ConfigError)
    assert time.thread_time() - started < 3
    said = str(caught.value)
    assert "/opt" not in said
    assert "site-packages" not in said
    assert "0x" not in said
    assert len(said) < 500


def test_a_template_that_prints_what_it_must_not_prints_nothing(k3_tokenizer: Tokenizer) -> None:
    assert (
        rendered(k3_tokenizer, "{{ messages.__class__ }}{{ messages[0]['__init__'] }}{{ range.__self__ }}")
        == ""
    )


def test_a_template_refuses_a_conversation_in_its_own_words(k3_tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError) as caught:
        rendered(k3_tokenizer, "{{ raise_exception('no ' ~ messages[0].content) }}", [user("<|open|>")])
    assert str(caught.value) == "The chat template refuses this conversation: no <|open|>"
    assert caught.value.param == "messages"


def test_what_templates_rely_on(k3_tokenizer: Tokenizer) -> None:
    source = (
        "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}\n"
        "    {% generation %}{{ m['content'] | trim | upper }}{% endgeneration %}\n"
        "{% endfor %}"
        "{{ strftime_now('%Y') | length }}{{ ' a b '.strip().split(' ') | last }}"
        "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(',') }}"
        "{{ [3, 1] | sort | tojson(separators=(',', ':')) }}{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}"
        "{{ {'a': [1]} | tojson(indent=2) }}{{ (messages + [messages[0]]) | length }}"
        "{% set x = 'abc' %}{{ x[::-1] }}{{ x.replace('b', '-') }}{{ x is string }}{{ none is none }}"
        "{{ '<&' | e }}"
        "{{ '%s-%d' % ('a', 3) }}{{ '{}!'.format(1) }}{{ undefined_one is defined }}{{ tools is none }}"
    )
    assert rendered(k3_tokenizer, source, [user(" hi "), user("x")]) == (
        'HI4b hi ,x[1,3]{"a": 2, "b": 1}{\n  "a": [\n    1\n  ]\n}3cbaa-cTrueTrue&lt;&amp;a-31!FalseTrue'
    )


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"thinking": True}, "thinking"),
        ({"thinking_effort": "low"}, "thinking_effort"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"template_arguments": {"style": "x"}}, "template_arguments.style"),
        ({"template_arguments": {"messages": []}}, "template_arguments.messages"),
        ({"template_arguments": {"bos_token": "x"}}, "template_arguments.bos_token"),
    ],
)
def test_what_a_template_does_not_look_at_is_refused(
    k3_tokenizer: Tokenizer, options: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        rendered(k3_tokenizer, "{{ bos_token }}{{ messages[0].content }}", **options)
    assert caught.value.param == param
    assert str(caught.value).startswith(param)


def test_arguments_reach_the_template(k3_tokenizer: Tokenizer) -> None:
    source = "{{ style }}/{{ reasoning_effort }}/{{ enable_thinking }}"
    style = {"style": {"a": "<|open|>"}}
    options: dict[str, Any] = {"template_arguments": style, "thinking_effort": "low", "thinking": True}
    assert rendered(k3_tokenizer, source, **options) == "{'a': '<|open|>'}/low/True"
    assert rendered(k3_tokenizer, source, thinking_effort="none") == "//False"


def test_where_a_template_comes_from(tmp_path: Path) -> None:
    folder = write_tiktoken(tmp_path / "model")
    from milepost.chat.tokenizer_folder import load_tokenizer

    tokenizer = load_tokenizer(folder)
    given = tmp_path / "given.jinja"
    given.write_text("given {{ messages[0].content }}")

    def prompt(family: str, **more: Any) -> str:
        return written(tokenizer, chat_encoding(family, tokenizer, folder, **more).encode([user("x")]))

    assert prompt("kimi_k3", template=str(given)) == "given x"
    with pytest.raises(ConfigError, match="no chat template"):
        prompt("llama")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"eos_token": {"content": "[EOS]"}}
    config["chat_template"] = [{"name": "default", "template": "named {{ eos_token }}"}]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert prompt("llama") == "named [EOS]"
    config["chat_template"] = "config {{ messages[0].content }}"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert prompt("llama") == "config x"
    (folder / "chat_template.jinja").write_text("file {{ messages[0].content }}")
    assert prompt("llama") == "file x"
    assert prompt("kimi_k3").startswith("<|open|>message"), (
        "a family's own form comes before the checkpoint's"
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "can't be read: No such file"),
        (lambda path: path.write_bytes(b"\xff"), "must be UTF-8"),
        (lambda path: path.write_text("{% for %}"), "is no chat template: line 1"),
        (lambda path: path.write_text("{{ 'a' | center(9) }}"), "No filter named 'center'"),
        (lambda path: path.write_text("(" * 2_000_000), "at most 1,048,576 characters"),
        (lambda path: path.write_text("{{ " + "(" * 100_000 + " }}"), "is no chat template"),
    ],
)
def test_a_template_that_can_not_be_used(
    k3_tokenizer: Tokenizer, tmp_path: Path, make: Any, says: str
) -> None:
    path = tmp_path / "chat.jinja"
    make(path)
    with pytest.raises(ConfigError, match=says):
        chat_encoding("kimi_k3", k3_tokenizer, template=str(path))


def test_a_form_of_replies_that_is_not_known(k3_tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("x")
    with pytest.raises(ConfigError, match="reply_parser must be one of plain, think-tags, hermes"):
        chat_encoding("kimi_k3", k3_tokenizer, template=str(tmp_path / "chat.jinja"), reply_parser="herms")
    with pytest.raises(ConfigError, match="has a form of its own"):
        chat_encoding("kimi_k3", k3_tokenizer, reply_parser="hermes")
