"""The LLM class on a small random checkpoint: real files, the whole engine, no fakes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from milepost.config import EngineConfig
from milepost.engine.engine import Engine
from milepost.errors import (
    CheckpointError,
    ConfigError,
    EngineStoppedError,
    ExecutionError,
    RequestError,
    RequestTooLargeError,
    TokenizerError,
)
from milepost.llm import LLM, load_engine
from milepost.types import FinishReason, SamplingParams
from tests.llm.checkpoints import (
    ENGINE,
    copied,
    enlarge_tokenizer,
    put_nan,
    small_kimi_linear,
    truncate_a_shard,
)

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
USER = {"role": "user", "content": "the road"}


def idle(llm: LLM) -> bool:
    """Whether nothing is alive and no page is held."""
    stats = llm.stats().scheduler
    return stats.running == stats.waiting == 0 and stats.pages.leased == 0


def test_prompts_together_give_what_each_gives_alone(llm: LLM) -> None:
    prompts = ["the mile post", "a", "stands beside the road " * 5]
    together = llm.generate(prompts, GREEDY)
    alone = [llm.generate(prompt, GREEDY)[0] for prompt in prompts]
    assert [done.token_ids for done in together] == [done.token_ids for done in alone]
    assert [done.text for done in together] == [done.text for done in alone]
    for prompt, done in zip(prompts, together, strict=True):
        assert done.usage.prompt_tokens == len(llm.tokenizer.encode(prompt))
        assert len(done.token_ids) == done.usage.output_tokens == 6
        assert done.finish_reason is FinishReason.LENGTH
        assert done.text == llm.tokenizer.decode(done.token_ids)
    assert idle(llm)


def test_token_ids_are_a_prompt_too(llm: LLM) -> None:
    ids = llm.tokenizer.encode("the mile post")
    (expected,) = llm.generate("the mile post", GREEDY)
    assert llm.generate(ids, GREEDY)[0].token_ids == expected.token_ids
    assert [done.token_ids for done in llm.generate([ids, ids], GREEDY)] == [expected.token_ids] * 2
    assert llm.generate([], GREEDY) == []


def test_a_stream_is_the_same_reply_in_pieces(llm: LLM) -> None:
    (whole,) = llm.generate("the road", GREEDY)
    outputs = list(llm.stream("the road", GREEDY))
    assert len(outputs) == 6
    assert "".join(output.text for output in outputs) == whole.text
    assert tuple(token for output in outputs for token in output.token_ids) == whole.token_ids
    assert [output.finished for output in outputs] == [False] * 5 + [True]


def test_two_streams_at_once_keep_their_own_tokens(llm: LLM) -> None:
    prompts = ("the mile post", "a")
    alone = [llm.generate(prompt, GREEDY)[0].text for prompt in prompts]
    streams = [iter(llm.stream(prompt, GREEDY)) for prompt in prompts]
    texts = ["", ""]
    for _ in range(2 * (GREEDY.max_tokens or 0)):
        for index, stream in enumerate(streams):
            texts[index] += "".join(output.text for output in islice(stream, 1))
    assert texts == alone
    assert idle(llm)


def test_other_calls_while_a_stream_is_open(llm: LLM) -> None:
    expected = llm.generate(["the mile post", "a"], GREEDY)
    stream = iter(llm.stream("the mile post", GREEDY))
    texts = [next(stream).text]
    assert llm.generate("a", GREEDY)[0].text == expected[1].text
    texts += [output.text for output in stream]
    assert "".join(texts) == expected[0].text
    assert idle(llm)


def test_threads_that_call_at_the_same_time(llm: LLM) -> None:
    prompts = [f"{number} mile post" for number in range(6)]
    expected = [done.text for done in llm.generate(prompts, GREEDY)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        whole = pool.map(lambda prompt: llm.generate(prompt, GREEDY)[0].text, prompts)
        pieces = pool.map(lambda prompt: "".join(out.text for out in llm.stream(prompt, GREEDY)), prompts)
        assert list(whole) == expected
        assert list(pieces) == expected
    assert idle(llm)


def test_closing_ends_an_open_stream(k3: Path) -> None:
    with LLM(k3, **ENGINE) as llm:
        stream = iter(llm.stream("the road", GREEDY))
        next(stream)
    (last,) = stream
    assert last.finish_reason is FinishReason.ABORT


def test_leaving_a_stream_frees_its_pages(llm: LLM) -> None:
    for _ in llm.stream("the road", GREEDY):
        assert llm.stats().scheduler.pages.leased > 0
        break
    assert idle(llm)


def test_an_aborted_stream_ends_with_its_reason(llm: LLM) -> None:
    stream = llm.stream("the road", GREEDY)
    outputs = []
    for output in stream:
        outputs.append(output)
        stream.abort()
    assert [output.finish_reason for output in outputs] == [None, FinishReason.ABORT]
    assert idle(llm)


def test_seeds_repeat_draws_whatever_runs_beside_them(llm: LLM) -> None:
    drawn = SamplingParams(temperature=1.0, seed=7, max_tokens=8, ignore_eos=True)
    (first,) = llm.generate("the", drawn)
    again = llm.generate(["the", "a", "the"], drawn)
    assert again[0].token_ids == again[2].token_ids == first.token_ids


def test_logprobs_come_with_every_token(llm: LLM) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=2)
    (done,) = llm.generate("the", sampling)
    assert [entry.token_id for entry in done.logprobs] == list(done.token_ids)
    assert all(len(entry.top) == 2 and entry.top[0][0] == entry.token_id for entry in done.logprobs)


def test_a_conversation_is_parsed_from_what_was_drawn(llm: LLM) -> None:
    done = llm.chat([USER], GREEDY)
    assert done.completion.usage.output_tokens == 6
    assert done.reply.reasoning is None
    streamed = list(llm.stream_chat([USER], GREEDY))
    assert "".join(delta.content for delta, _ in streamed) == done.reply.content
    both = llm.chat_all([[USER], [USER]], GREEDY)
    assert [one.completion.token_ids for one in both] == [done.completion.token_ids] * 2
    thought = llm.chat([USER], GREEDY, thinking=True)
    assert thought.completion.usage.prompt_tokens > done.completion.usage.prompt_tokens + 100


def test_the_models_end_token_ends_a_reply(llm: LLM) -> None:
    # A prompt of the end token's own making can't be had from a random model, so any token is made one.
    (free,) = llm.generate("the", GREEDY)
    stop = free.token_ids[2]
    ended = SamplingParams(temperature=0.0, max_tokens=6, stop_token_ids=(stop,))
    (done,) = llm.generate("the", ended)
    place = free.token_ids.index(stop)
    assert done.finish_reason is FinishReason.STOP
    assert done.stop_reason == stop
    assert done.token_ids == free.token_ids[: place + 1]
    assert done.text == llm.tokenizer.decode(free.token_ids[:place])


def test_prompts_over_the_limit_are_refused_with_both_numbers(llm: LLM) -> None:
    steps = llm.stats().scheduler.steps
    with pytest.raises(RequestTooLargeError, match=r"at most 399 tokens.*Given: 600"):
        llm.generate(["the", [*range(97, 107)] * 60], GREEDY)
    with pytest.raises(RequestTooLargeError, match="at most 399 tokens"):
        llm.stream_chat([{"role": "user", "content": "the " * 600}])
    assert llm.stats().scheduler.steps == steps, "nothing may run when one prompt is refused"
    assert idle(llm)


@pytest.mark.parametrize(
    ("prompts", "says"),
    [
        ("", "at least one token"),
        ([[]], "at least one token"),
        (["a", 3], "a number at place 1"),
        ([9999], "9999"),
        (None, "Given: NoneType"),
        ([None], "Given: NoneType"),
        ([1.5], "Given: float"),
        (b"abc", "Given: bytes"),
        ([b"abc"], "Given: bytes"),
        ({"prompt": 1}, "Given: dict"),
        ([["a"]], "must be integers. Given: 'a'"),
        ([[1.5]], "must be integers. Given: 1.5"),
        ([[True]], "must be integers. Given: True"),
    ],
)
def test_bad_prompts_are_refused(llm: LLM, prompts: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        llm.generate(prompts, GREEDY)


def test_unknown_options_of_a_chat_name_the_nearest(k3: Path) -> None:
    with (
        LLM(k3, **ENGINE) as llm,
        pytest.raises(ConfigError, match=r"Given: 'thinkin'\. Did you mean 'thinking'\?"),
    ):
        llm.chat([{"role": "user", "content": "the road"}], thinkin=False)


def test_unknown_options_name_the_nearest(k3: Path) -> None:
    with pytest.raises(ConfigError, match=r"'max_seqs'.*Did you mean 'max_num_seqs'"):
        LLM(k3, max_seqs=3)
    with pytest.raises(ConfigError, match="block_size must be at least 1"):
        LLM(k3, block_size=0)


@pytest.mark.parametrize(
    ("damage", "error", "says"),
    [
        (lambda folder: (folder / "config.json").unlink(), CheckpointError, "config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), CheckpointError, "config.json"),
        (truncate_a_shard, CheckpointError, "safetensors"),
        (lambda folder: (folder / "tiktoken.model").unlink(), TokenizerError, "neither tiktoken.model"),
        (enlarge_tokenizer, TokenizerError, "Wrong tokenizer.*rows"),
    ],
)
def test_broken_checkpoints_are_refused(
    k3: Path, tmp_path: Path, damage: Callable[[Path], object], error: type[Exception], says: str
) -> None:
    broken = copied(k3, tmp_path / "broken", damage)
    with pytest.raises(error, match=says):
        LLM(broken, **ENGINE)


def test_what_can_not_fit_is_refused_before_weights_are_read(k3: Path) -> None:
    seen: list[tuple[int, int]] = []
    with pytest.raises(ConfigError, match="memory"):
        LLM(k3, **ENGINE | {"memory": "64KiB"}, progress=lambda done, total: seen.append((done, total)))
    assert seen == []
    with LLM(k3, **ENGINE, progress=lambda done, total: seen.append((done, total))):
        assert seen[-1][0] == seen[-1][1] > 0


def test_logits_that_are_not_finite_fail_the_request_alone(k3: Path, tmp_path: Path) -> None:
    with LLM(copied(k3, tmp_path / "nan", put_nan), **ENGINE) as llm:
        with pytest.raises(ExecutionError, match="not finite"):
            llm.generate(["the", "a"], GREEDY)
        assert idle(llm)
        with pytest.raises(ExecutionError, match="not finite"):
            list(llm.stream("the", GREEDY))
        assert idle(llm)


def test_a_closed_model_answers_nothing(k3: Path) -> None:
    with LLM(k3, **ENGINE) as llm:
        pass
    with pytest.raises(EngineStoppedError, match="closed"):
        llm.generate("the", GREEDY)
    llm.close()


def test_kimi_linear_speaks_its_own_form(tmp_path: Path) -> None:
    with LLM(small_kimi_linear(tmp_path / "toy"), **ENGINE) as llm:
        done = llm.chat([USER], GREEDY)
        texts = ("user", "the road", "assistant")
        markers = 5
        expected = markers + sum(len(llm.tokenizer.encode(text)) for text in texts)
        assert done.completion.usage.prompt_tokens == expected
        assert done.reply.content == done.completion.text


def test_load_engine_gives_the_step_loop(k3: Path) -> None:
    engine = load_engine(EngineConfig.from_options({"model": k3, **ENGINE})).engine
    assert isinstance(engine, Engine)
    assert not engine.has_work
    engine.close()
