"""How much the shipped model computes again: chats that go on, resends, forks, parting prompts, many users.

Through the LLM class with its default cache: what a user sees in `usage`. Every answer is compared
with that of the same model with the cache off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import pytest

from milepost.chat.encoding import ChatOptions
from milepost.cli.shipped_model import shipped_model
from milepost.llm import LLM
from milepost.types import SamplingParams
from tests.e2e.shipped import Messages, assistant, messages_of, user
from training.cases import Case, distractor, make_cases

UNIT = 16
SPARE = 64  # tokens between spare snapshots
GREEDY = SamplingParams(temperature=0.0, max_tokens=16)
BRIEF = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)

Tokens = Sequence[int]


@pytest.fixture(scope="module")
def cold() -> Iterator[LLM]:
    """The model with the cache off."""
    with LLM(shipped_model(), memory="64MiB", threads=1, prefix_cache=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def shared() -> Iterator[LLM]:
    with LLM(shipped_model(), memory="64MiB", threads=1) as llm:
        yield llm


@pytest.fixture
def llm(shared: LLM) -> Iterator[LLM]:
    """The model with an empty cache; afterwards, that it is idle and can be emptied."""
    shared.reset_cache()
    yield shared
    check_idle(shared)


def check_idle(llm: LLM) -> None:
    """Nothing is owned, every cached page is reachable by a key, and a reset frees them all."""
    scheduler = llm._loaded.engine._scheduler
    cache, counts = scheduler._cache, scheduler._pool.counts()
    assert cache is not None
    assert counts.leased == counts.quarantined == 0
    cache.check()
    assert counts.cached == cache.index.num_state_pages + cache.index.num_kv_pages > 0
    llm.reset_cache()
    counts = scheduler._pool.counts()
    assert (counts.cached, counts.leased, counts.free) == (0, 0, counts.total - 1)


def computed_tokens(llm: LLM) -> int:
    return llm.stats().scheduler.computed_tokens


def shared_length(one: Tokens, other: Tokens) -> int:
    """Tokens that both begin with."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def recall(llm: LLM, number: int, distance: int) -> Case:
    (case,) = make_cases("recall", 1, number, lambda text: len(llm.tokenizer.encode(text)), distance)
    return case


@pytest.mark.parametrize("thinking", [False, True])
def test_a_chat_of_twenty_turns_computes_what_is_new(llm: LLM, cold: LLM, thinking: bool) -> None:
    """At most the tokens that the turn before did not hold, one unit, and the generation suffix."""
    encoding = llm._loaded.encoding
    draw = Random("chat")
    messages: Messages = [{"role": "system", "content": "Answer in a word."}]
    before: tuple[int, ...] = ()
    turns: list[Messages] = []
    replies = []
    for turn in range(20):
        told = (
            f"The code for {('amber', 'river', 'lamp', 'stone')[turn % 4]} is {draw.randrange(1000, 9999)}."
        )
        messages.append(user(f"{told} {distractor(draw)} What is the code for amber?"))
        done = llm.chat(messages, GREEDY, thinking=thinking)
        prompt, usage = encoding.encode(messages, ChatOptions(thinking=thinking)), done.completion.usage
        suffix = len(prompt.token_ids) - prompt.message_ends[-1]
        new = len(prompt.token_ids) - shared_length(before, prompt.token_ids)
        assert usage.prompt_tokens == len(prompt.token_ids)
        assert usage.prompt_tokens - usage.cached_tokens <= new + UNIT + suffix
        before = prompt.token_ids + done.completion.token_ids
        turns.append([*messages])
        replies.append(done.completion.token_ids)
        messages.append(assistant(done.reply.content or ""))
    some = slice(1, None, 6)
    expected = cold.chat_all(turns[some], GREEDY, thinking=thinking)
    assert replies[some] == [one.completion.token_ids for one in expected]


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 63, 64, 65, 129, 200])
def test_a_resent_prompt_computes_one_token(llm: LLM, cold: LLM, length: int) -> None:
    draw = Random(length)
    prompt = [draw.randrange(1000) for _ in range(length)]
    runs = [llm.generate(prompt, BRIEF)[0] for _ in range(3)]
    assert [run.usage.cached_tokens for run in runs] == [0, length - 1, length - 1]
    assert {run.token_ids for run in runs} == {cold.generate(prompt, BRIEF)[0].token_ids}


@pytest.mark.parametrize("thinking", [False, True])
def test_a_resent_chat_computes_one_token(llm: LLM, cold: LLM, thinking: bool) -> None:
    case = recall(llm, 1, 96)
    runs = [llm.chat(messages_of(case), GREEDY, thinking=thinking).completion for _ in range(3)]
    length = runs[0].usage.prompt_tokens
    assert [run.usage.cached_tokens for run in runs] == [0, length - 1, length - 1]
    expected = cold.chat(messages_of(case), GREEDY, thinking=thinking)
    assert {run.token_ids for run in runs} == {expected.completion.token_ids}
    assert thinking or expected.reply.content == case.answer, "recalled from the cached part"


def test_streams_say_what_was_cached(llm: LLM) -> None:
    """In every output, not only in the last."""
    messages = messages_of(recall(llm, 1, 96))
    for cached in (0, llm.explain(messages=messages).prompt_tokens - 1):
        usages = [output.usage for _, output in llm.stream_chat(messages, GREEDY)]
        assert {usage.cached_tokens for usage in usages} == {cached}
        assert usages[-1].output_tokens > 1


def conversation() -> Messages:
    """Eight messages; the code is told in the first."""
    draw = Random("fork")
    messages = [user(f"The code for amber is 7412. {distractor(draw)}"), assistant("Noted.")]
    for _ in range(2):
        messages += [user(f"{distractor(draw)} {distractor(draw)}"), assistant("Noted.")]
    return [*messages, user("What is 3 plus 4?"), assistant("7")]


@pytest.mark.parametrize("thinking", [False, True])
def test_a_fork_computes_from_the_edited_message_on(llm: LLM, cold: LLM, thinking: bool) -> None:
    """Whichever message is edited: all before it is hit, the first time already."""
    base = [*conversation(), user("What is the code for amber?")]
    forks, answers = [], []
    for edited in range(1, 8):
        llm.reset_cache()
        llm.chat(base, GREEDY, thinking=thinking)
        message = {"role": base[edited]["role"], "content": f"Hello {edited}, how are you?"}
        fork = [*base[:edited], message, *base[edited + 1 :]]
        ends = llm._loaded.encoding.encode(fork, ChatOptions(thinking=thinking)).message_ends
        before = ends[edited - 1 - len(fork)]  # the thinking effort's own message comes first
        done = llm.chat(fork, GREEDY, thinking=thinking).completion
        assert done.usage.cached_tokens >= before > 0
        forks.append(fork)
        answers.append(done.token_ids)
    expected = cold.chat_all(forks, GREEDY, thinking=thinking)
    assert answers == [one.completion.token_ids for one in expected]
    assert thinking or all(one.reply.content == "7412" for one in expected)


def parts_from(llm: LLM, cold: LLM, prompt: list[int], sampling: SamplingParams, positions: range) -> None:
    """Prompts that leave `prompt` and its output at `positions`, each the first one ever to do so."""
    answers, forks = [], []
    for position in positions:
        llm.reset_cache()  # not a salt for each: memory must be free, or spare snapshots give way
        (base,) = llm.generate(prompt, sampling)
        whole = [*prompt, *base.token_ids]
        rest = [(whole[position] + 1) % 1000, *range(5, 5 + position % 7)]
        fork = whole[:position] + rest
        (done,) = llm.generate(fork, BRIEF)
        assert done.usage.prompt_tokens - done.usage.cached_tokens <= SPARE + len(rest), position
        forks.append(fork)
        answers.append(done.token_ids)
    assert answers == [one.token_ids for one in cold.generate(forks, BRIEF)]


def text_of_tokens(llm: LLM, count: int) -> list[int]:
    draw = Random("text")
    ids: list[int] = []
    while len(ids) < count:
        ids += llm.tokenizer.encode(distractor(draw) + " ")
    return ids[:count]


def test_a_prompt_that_parts_anywhere_computes_little(llm: LLM, cold: LLM) -> None:
    """At a token that nobody foresaw, on the first divergence: at most 64 tokens and its own rest."""
    parts_from(llm, cold, text_of_tokens(llm, 333), BRIEF, range(1, 333, 29))


def test_a_prompt_that_parts_inside_an_output_computes_little(llm: LLM, cold: LLM) -> None:
    long = SamplingParams(temperature=0.0, max_tokens=90, ignore_eos=True)
    parts_from(llm, cold, text_of_tokens(llm, 50), long, range(51, 139, 43))


@pytest.mark.slow
@pytest.mark.parametrize("begin", range(1, 9))
def test_a_prompt_that_parts_at_every_token(llm: LLM, cold: LLM, begin: int) -> None:
    parts_from(llm, cold, text_of_tokens(llm, 333), BRIEF, range(begin, 333, 8))


@pytest.mark.slow
@pytest.mark.parametrize("begin", range(41, 45))
def test_a_prompt_that_parts_at_every_token_of_an_output(llm: LLM, cold: LLM, begin: int) -> None:
    long = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True)
    parts_from(llm, cold, text_of_tokens(llm, 40), long, range(begin, 189, 4))


def users_of(llm: LLM, count: int) -> tuple[list[Messages], int]:
    """Conversations of users with one system prompt, and its tokens."""
    draw = Random("system")
    sentences = ["The code for amber is 7412."]
    while len(llm.tokenizer.encode(" ".join(sentences))) < 680:
        sentences.append(distractor(draw))
    system = {"role": "system", "content": " ".join(sentences)}
    asked = [[system, user(f"Hello, I am user {n}. What is the code for amber?")] for n in range(count)]
    return asked, llm._loaded.encoding.encode(asked[0]).message_ends[0]


@pytest.mark.parametrize("together", [False, True])
def test_a_system_prompt_of_a_hundred_users_is_computed_once(llm: LLM, cold: LLM, together: bool) -> None:
    conversations, system = users_of(llm, 100)
    assert system == pytest.approx(700, abs=20)
    before = computed_tokens(llm)
    if together:
        done = llm.chat_all(conversations, BRIEF)
    else:
        done = [llm.chat(messages, BRIEF) for messages in conversations]
    usages = [one.completion.usage for one in done]
    own = sum(usage.prompt_tokens - system for usage in usages)
    drawn = sum(usage.output_tokens - 1 for usage in usages)  # the last one drawn is never computed
    computed = computed_tokens(llm) - before - drawn
    assert computed <= system + own + UNIT * len(usages)
    assert computed == sum(usage.prompt_tokens - usage.cached_tokens for usage in usages)
    assert sorted(usage.cached_tokens > 0 for usage in usages) == [False] + [True] * 99
    some = slice(None, None, 20)
    expected = cold.chat_all(conversations[some], BRIEF)
    assert [one.completion.token_ids for one in done[some]] == [one.completion.token_ids for one in expected]
