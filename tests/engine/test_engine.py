"""The step loop: every accepted request gets its text and exactly one end."""

from __future__ import annotations

import logging

import pytest

from milepost.engine.reports import RequestReport, StepReport
from milepost.errors import EngineStoppedError, RequestError, RequestTooLargeError
from milepost.types import BatchResult, FinishReason, Request, SamplingParams, Usage
from tests.engine.harness import EOS, Setup, ask, run, text_of


def test_replies_come_as_text_and_end_at_the_end_token() -> None:
    setup = Setup({"a": "hello", "b": "Grüße 🎉"})
    setup.engine.submit(ask("a"))
    setup.engine.submit(ask("b"))
    outputs = run(setup.engine)
    assert text_of(outputs["a"]) == "hello"
    assert text_of(outputs["b"]) == "Grüße 🎉"
    last = outputs["a"][-1]
    assert (last.finish_reason, last.stop_reason, last.token_ids) == (FinishReason.STOP, EOS, (EOS,))
    assert last.usage == Usage(prompt_tokens=3, output_tokens=6)
    assert not setup.engine.has_work


def test_a_stop_token_of_the_request_ends_the_text_before_it() -> None:
    setup = Setup(lambda _, n: b"abc"[n])
    sampling = SamplingParams(stop_token_ids=(ord("c"),))
    setup.engine.submit(Request(request_id="a", prompt_token_ids=(1,), sampling=sampling))
    outputs = run(setup.engine)["a"]
    assert text_of(outputs) == "ab"
    assert [token for output in outputs for token in output.token_ids] == [*b"abc"]
    assert outputs[-1].stop_reason == ord("c")


def test_max_tokens_ends_with_length_and_flushes_what_was_held() -> None:
    setup = Setup({"a": "one END"})
    setup.engine.submit(ask("a", stop=("ENDE",), max_tokens=7))
    outputs = run(setup.engine)["a"]
    assert text_of(outputs) == "one END"
    assert outputs[-1].text == "END"
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_a_stop_string_ends_the_request_and_frees_its_pages_at_once() -> None:
    setup = Setup({"a": "one. two. three."})
    setup.engine.submit(ask("a", stop=(". t",)))
    outputs = run(setup.engine)["a"]
    assert text_of(outputs) == "one"
    last = outputs[-1]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, ". t")
    # Token ids stay as drawn, those of the stop string too.
    assert bytes(token for output in outputs for token in output.token_ids) == b"one. t"
    assert last.usage.output_tokens == 6
    assert setup.pool.counts().leased == 0
    assert len(setup.executor.batches) == 6


def test_a_stop_string_in_the_last_allowed_token_is_a_stop() -> None:
    setup = Setup({"a": "abc"})
    setup.engine.submit(ask("a", stop=("c",), max_tokens=3))
    last = run(setup.engine)["a"][-1]
    assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, "c")


def test_no_output_ever_shows_part_of_a_stop_string_or_of_a_character() -> None:
    setup = Setup({"a": "aé aéé"})
    setup.engine.submit(ask("a", stop=("éé",)))
    outputs = run(setup.engine)["a"]
    assert [output.text for output in outputs] == ["a", "", "", "é ", "a", "", "", "", ""]


def test_logprobs_come_with_their_tokens() -> None:
    setup = Setup({"a": "hi"})
    setup.engine.submit(ask("a", logprobs=1))
    outputs = run(setup.engine)["a"]
    assert [output.logprobs[0].token_id for output in outputs] == [*b"hi", EOS]
    assert outputs[0].logprobs[0].top == ((ord("h"), 0.0),)


def test_a_prompt_in_chunks_brings_nothing_before_its_first_token() -> None:
    setup = Setup({"a": "x"}, token_budget=4)
    setup.engine.submit(ask("a", range(1, 11)))
    assert setup.engine.step() == []
    assert setup.engine.step() == []
    assert [output.text for output in setup.engine.step()] == ["x"]


def test_a_failed_row_ends_one_request_with_its_error() -> None:
    setup = Setup({"a": "abc", "b": "xyz"})
    setup.engine.submit(ask("a"))
    setup.engine.submit(ask("b"))
    setup.engine.step()
    setup.executor.fail_request("a", "the logits are not finite")
    outputs = run(setup.engine)
    (last,) = outputs["a"]
    assert (last.finish_reason, last.error) == (FinishReason.ERROR, "the logits are not finite")
    assert last.usage.output_tokens == 1
    assert text_of(outputs["b"]) == "yz"
    assert setup.engine.failure is None


def test_an_executor_that_raises_ends_everything_once_and_the_engine_takes_no_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup({"a": "abc", "b": "xyz", "c": "q"}, max_num_seqs=2)
    for name in "abc":
        setup.engine.submit(ask(name))
    setup.engine.step()
    setup.executor.crash(RuntimeError("device lost"))
    with caplog.at_level(logging.ERROR):
        outputs = run(setup.engine)
    assert "device lost" in caplog.text
    for name in "abc":
        (last,) = outputs[name]
        assert last.finish_reason is FinishReason.ERROR
        assert last.error == "The engine failed in a step: RuntimeError: device lost."
    assert outputs["a"][0].usage.output_tokens == 1
    assert setup.pool.counts().leased == 0
    with pytest.raises(EngineStoppedError, match=r"device lost.*takes no new requests"):
        setup.engine.submit(ask("d"))
    assert setup.engine.step() == []
    assert setup.engine.stats().failure is not None
    assert setup.engine.close() == []
    assert setup.executor.closed == 1


def test_an_executor_that_breaks_its_contract_is_a_failed_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup({"a": "abc"})
    setup.engine.submit(ask("a"))
    monkeypatch.setattr(setup.executor, "run", lambda _: BatchResult(step=99, rows=()))
    (last,) = run(setup.engine)["a"]
    assert last.finish_reason is FinishReason.ERROR
    assert "answered step 99" in (last.error or "")
    assert setup.pool.counts().leased == 0


def test_an_interrupted_step_leaves_an_engine_that_takes_no_more() -> None:
    setup = Setup({"a": "abc"})
    setup.engine.submit(ask("a"))
    setup.executor.crash(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        setup.engine.step()
    with pytest.raises(EngineStoppedError, match="interrupted"):
        setup.engine.submit(ask("b"))
    (last,) = setup.engine.close()
    assert last.finish_reason is FinishReason.ABORT
    assert setup.executor.closed == 1


def test_abort_returns_the_one_last_output() -> None:
    setup = Setup({"a": "hello"})
    setup.engine.submit(ask("a", stop=("ello",)))
    setup.engine.step()
    setup.engine.step()
    last = setup.engine.abort("a")
    assert last is not None
    assert (last.finish_reason, last.text, last.usage.output_tokens) == (FinishReason.ABORT, "e", 2)
    assert setup.engine.abort("a") is None
    assert not setup.engine.has_work
    assert setup.pool.counts().leased == 0


def test_close_aborts_what_is_alive_and_closes_the_executor_once() -> None:
    setup = Setup({"a": "hello", "b": "hello"}, max_num_seqs=1)
    setup.engine.submit(ask("a"))
    setup.engine.submit(ask("b"))
    setup.engine.step()
    outputs = setup.engine.close()
    assert {output.request_id: output.finish_reason for output in outputs} == dict.fromkeys(
        "ab", FinishReason.ABORT
    )
    assert setup.engine.close() == []
    assert setup.executor.closed == 1
    assert setup.engine.step() == []
    with pytest.raises(EngineStoppedError, match="closed"):
        setup.engine.submit(ask("c"))


def test_what_can_not_be_served_is_refused_and_leaves_nothing() -> None:
    setup = Setup({}, num_pages=6)
    with pytest.raises(RequestTooLargeError, match="at most 12 tokens"):
        setup.engine.submit(ask("a", range(13)))
    with pytest.raises(RequestError, match="at least one token"):
        setup.engine.submit(ask("a", ()))
    with pytest.raises(RequestTooLargeError):
        setup.engine.limits.validate(ask("a", range(13)))
    assert not setup.engine.has_work
    assert setup.engine.limits.max_length == 13


def test_after_an_interrupted_step_everything_ends_once() -> None:
    setup = Setup({"a": "hello", "b": "hello"})
    setup.engine.submit(ask("a"))
    setup.engine.submit(ask("b"))
    setup.engine.step()
    setup.executor.crash(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        setup.engine.step()
    outputs = setup.engine.step()
    assert {output.request_id: output.finish_reason for output in outputs} == dict.fromkeys(
        "ab", FinishReason.ERROR
    )
    assert all("interrupted" in (output.error or "") for output in outputs)
    assert setup.engine.step() == []
    assert setup.pool.counts().leased == 0


class Recorder:
    """Everything that an observer is told."""

    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.ends: list[RequestReport] = []

    def stepped(self, step: StepReport, /) -> None:
        self.steps.append(step)

    def finished(self, request: RequestReport, /) -> None:
        self.ends.append(request)

    @property
    def first(self) -> list[float]:
        return [first.seconds for step in self.steps for first in step.first_tokens]

    @property
    def gaps(self) -> list[float]:
        return [gap for step in self.steps for gap in step.gaps]


def test_latencies_and_totals() -> None:
    recorder, now = Recorder(), [100.0]
    setup = Setup({"a": "xy"}, token_budget=2, clock=lambda: now[0], observer=recorder)
    setup.engine.submit(ask("a", (1, 2, 3)))
    for seconds in (1.0, 2.0, 0.5, 0.25):
        now[0] += seconds
        setup.engine.step()
    assert recorder.first == [3.0]
    assert recorder.gaps == [0.5, 0.25]
    (end,) = recorder.ends
    assert (end.reason, end.usage.output_tokens, end.seconds) == (FinishReason.STOP, 3, 3.75)
    stats = setup.engine.stats()
    assert (stats.prompt_tokens, stats.output_tokens) == (3, 3)
    assert stats.finished == {**dict.fromkeys(FinishReason, 0), FinishReason.STOP: 1}
    assert stats.scheduler.steps == 4
