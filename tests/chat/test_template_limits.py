"""What a hostile template makes large or slow is refused first; what others make is as Jinja has it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from milepost.chat.encoding import ChatOptions
from milepost.chat.templates import limits
from milepost.chat.templates.form import TemplateEncoding
from milepost.chat.templates.sandbox import ChatTemplate
from milepost.chat.tokenizer_folder import load_tokenizer
from milepost.errors import RequestError
from tests.chat.conftest import write_tiktoken

LONG = "{% set x = '中' * 30000000 %}"


def doubled(name: str, times: int, of: str = "dict") -> str:
    """Each value holds the one before it twice."""
    return "".join(f"{{% set {name}{i + 1} = {of}(a={name}{i}, b={name}{i}) %}}" for i in range(times))


TOO_LARGE = {
    "a format's fields": "{{ ('{0}' * 100000).format('x' * 300000) }}",
    "a format's fields of a mapping": "{{ ('%(a)s' * 100000) % {'a': 'x' * 300000} }}",
    "a format's fields, by the filter": "{% set b = 'x' * 20000000 %}{{ '%s%s'|format(b, b) }}",
    "a format that writes characters out": "{{ '{!a}'.format('\U000f0001' * 8000000) }}",
    "a list of words": "{{ ('xy ' * 10000000).split()|length }}",
    "a list of pieces from the right": "{{ ('xy ' * 10000000).rsplit(' ')|length }}",
    "a list of lines": "{{ ('xy\n' * 10000000).splitlines()|length }}",
    "indented lines": "{{ ('\n' * 20000000)|indent(1)|length }}",
    "all arguments at once": LONG + "{{ dict(*x) }}",
    "a filter's arguments at once": LONG + "{{ '%s'|format(*x) }}",
    "values within values": "{% set d0 = dict(a='x' * 100000) %}" + doubled("d", 9) + "{{ d9.values() }}",
    **{
        f"characters of a text, by {name}": LONG + "{{ x|" + name + " }}"
        for name in (
            "sort|first",
            "groupby('a')|length",
            "unique|list",
            "wordcount",
            "title",
            "map('int')|max",
        )
    },
}
TOO_SLOW = {
    "filters of filters": "{% set l = range(99999)|list %}{{ l" + "|map('int')" * 100 + "|max }}",
    "values that hold one another": "{% set d0 = dict(a=1) %}{% set e0 = dict(a=1) %}"
    + doubled("d", 40)
    + doubled("e", 40)
    + "{{ d40 == e40 }}",
}


@pytest.mark.parametrize("trap", TOO_LARGE)
def test_what_gets_too_large(trap: str) -> None:
    started = time.thread_time()
    with pytest.raises(RequestError, match=r"The chat template was ended: it (made|took)"):
        ChatTemplate(TOO_LARGE[trap], "a template").render({})
    assert time.thread_time() - started < limits.MAX_SECONDS


@pytest.mark.parametrize("trap", TOO_SLOW)
def test_what_gets_too_slow(trap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_SECONDS", 0.2)
    with pytest.raises(RequestError, match="The chat template was ended"):
        ChatTemplate(TOO_SLOW[trap], "a template").render({})


def test_a_namespace_that_holds_itself_is_not_written_out() -> None:
    many = doubled("n", 40, "namespace")
    source = (
        "{% set n0 = namespace(a='x' * 20000000) %}" + many + "{{ n40 }}{{ [n40] }}{{ n40.a.b is defined }}"
    )
    assert ChatTemplate(source, "a template").render({}) == "<Namespace>[<Namespace>]True"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ '%(a)s-%(b)d' % {'a': 'x', 'b': 2} }}", "x-2"),
        ("{{ '%s' % ({'a': 1},) }}", "{'a': 1}"),
        ("{{ '{a}{0!r}{1[k]:>4}'.format('x', {'k': 'y'}, a=1) }}", "1'x'   y"),
        ("{{ 'a b  c'.split() }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b'.rsplit(sep=',', maxsplit=1) }}", None),
        ("{{ 'a\nb'.splitlines() }}{{ 'ab cd'|title }}{{ 'cab'|sort|join }}{{ 'a b'|wordcount }}", None),
        ("{{ dict([('a', 1)], b=2) }}{{ dict(**{'c': 3}).c }}{{ '%s%s'|format(*['a', 'b']) }}", None),
        ("{% macro m() %}{{ varargs|join('+') }}{% endmacro %}{{ m(*'abc') }}", "a+b+c"),
        ("{% set n = namespace(a=1) %}{% set n.a = n.a + 1 %}{{ n.a }}", "2"),
    ],
)
def test_small_ones_are_as_jinja_has_them(source: str, text: str | None) -> None:
    plain = ImmutableSandboxedEnvironment().from_string(source).render()
    assert text is None or text == plain
    assert ChatTemplate(source, "a template").render({}) == plain


def test_types_of_a_schema_are_what_templates_compare(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_tiktoken(tmp_path, {0: "<|object_ref_start|>", 1: "<|im_end|>"}))
    source = (
        "{% for t in tools %}{% for n, p in t.function.parameters.properties.items() %}"
        "{{ n }}={{ 'yes' if p.type == 'object' }}{{ '<|' + p.title + '_ref_start|>' }}"
        "{% endfor %}{% endfor %}"
    )
    properties = {"a": {"type": "object", "title": "object"}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}
    encoding = TemplateEncoding(ChatTemplate(source, "a template"), tokenizer, {})
    prompt = encoding.encode([{"role": "user", "content": "x"}], ChatOptions(tools=[tool]))
    assert tokenizer.decode(prompt.token_ids) == "a=yes<|object_ref_start|>"
