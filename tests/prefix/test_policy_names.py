"""Policies as they are written on the command line, and what is refused."""

from __future__ import annotations

import pytest

from milepost.errors import ConfigError
from milepost.prefix.policies import parse_policy
from milepost.prefix.policies.parsing import POLICY_NAMES
from milepost.prefix.terms import Term, parse_terms
from tests.prefix.views import view_of

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("none", "none"),
        ("last", "last"),
        ("prompt-tail", "prompt-tail"),
        ("turns", "turns"),
        ("branch", "branch"),
        ("adaptive", "adaptive"),
        ("adaptive()", "adaptive"),
        ("adaptive(spare=64)", "adaptive"),
        (" adaptive ( 128 ) ", "adaptive(spare=128)"),
        ("every(8192)", "every(8192)"),
        ("every(period=8192)", "every(8192)"),
        ("budget(snapshots=8)", "budget(snapshots=8)"),
        ("turns + branch+every( 8192 )", "turns+branch+every(8192)"),
    ],
)
def test_names(text: str, name: str) -> None:
    assert parse_policy(text).name == name
    assert parse_policy(name).name == name


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "takes names in lower case"),
        ("turns+", "takes names in lower case"),
        ("turns,branch", "takes names in lower case"),
        ("Turns", "takes names in lower case"),
        ("every(64", "takes names in lower case"),
        ("every(64))", "takes names in lower case"),
        ("every(=64)", "takes names in lower case"),
        ("adaptive(spare=)", "takes names in lower case"),
        ("adaptive(64,)", "takes names in lower case"),
        ("turn", "Did you mean 'turns'"),
        ("prompttail", "Did you mean 'prompt-tail'"),
        ("turns+brunch", "Did you mean 'branch'"),
        ("turns(3)", "turns takes no parameters. Given: '3'"),
        ("last(n=3)", "last has no parameter 'n'. Known: none"),
        ("every", "every needs a period in tokens, such as every(8192). Given: none"),
        ("every()", "every needs a period"),
        ("every(0)", "at least 1 token. Given: 0"),
        ("every(-64)", "every's period must be a whole number. Given: '-64'"),
        ("every(64.0)", "every's period must be a whole number. Given: '64.0'"),
        ("every(8k)", "every's period must be a whole number. Given: '8k'"),
        ("every(1" + 30 * "0" + ")", "every's period must be a whole number"),
        ("every(1, 2)", "every takes only period without a name. Given: '2'"),
        ("every(1, period=2)", "every takes period once. Given: twice"),
        ("every(perod=64)", "every has no parameter 'perod'. Did you mean 'period'? Known: period"),
        ("adaptive(spares=64)", "Did you mean 'spare'"),
        ("turns+turns", "names turns twice"),
        ("adaptive+adaptive(64)", "names adaptive twice"),
        ("none+turns", "none stands alone"),
        ("budget", "budget needs a size for each prompt"),
        ("budget(snapshots=0)", "at least 1 snapshot a prompt. Given: 0"),
        ("budget(512MiB)", "needs the size of a state"),
        ("budget(512MiX)", "takes a number of bytes, such as 512MiB or 2GiB. Given: '512MiX'"),
        ("budget(1GiB, snapshots=2)", "bytes or snapshots. Given: both"),
    ],
)
def test_what_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_policy(text)
    assert complaint in str(caught.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=", ".join(POLICY_NAMES)):
        parse_policy("sometimes")


@pytest.mark.parametrize("text", ["budget", "budget(512MiB)", "budget(bytes=512MiB)", "budget(536870912)"])
def test_a_budget_in_bytes_is_counted_in_states(text: str) -> None:
    policy = parse_policy(text, state_bytes=56 * MIB, budget_bytes=512 * MIB)
    assert len(policy.plan(view_of(100_000)).points) == 512 // 56


def test_a_budget_that_holds_no_state_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"at least one state, 56\.0 MiB\. Given: 55\.0 MiB"):
        parse_policy("budget(55MiB)", state_bytes=56 * MIB)


def test_terms_keep_what_was_written() -> None:
    assert parse_terms("eviction", "marconi(alpha=0.5)+x( 1 , b = 2 )") == (
        Term(option="eviction", name="marconi", arguments=(("alpha", "0.5"),)),
        Term(option="eviction", name="x", arguments=(("", "1"), ("b", "2"))),
    )
