"""Cases are decided by their seeds, and dialogues mark exactly what an assistant says."""

from random import Random

import pytest

from training import cases, words
from training.cases import RECALL_KINDS, SHORT_TASKS, make_cases
from training.chat import ChatForm
from training.data.dialogues import DialogueWriter, drill
from training.tokenizer import ToyTokenizer


@pytest.fixture(scope="module")
def tokenizer() -> ToyTokenizer:
    return ToyTokenizer({bytes([value]): value for value in range(256)})


def _count_words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("kind", [*RECALL_KINDS, *SHORT_TASKS])
def test_equal_seeds_make_equal_cases(kind: str) -> None:
    first, again, other = (make_cases(kind, 20, seed, _count_words, 50) for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.parametrize("distance", [0, 100, 1000])
def test_recall_is_told_once_and_asked_after_the_distance(distance: int) -> None:
    for case in make_cases("recall", 20, 0, _count_words, distance):
        *told, question = case.messages
        key = question.content.removeprefix("What is the code for ").removesuffix("?")
        statement = f"The code for {key} is {case.answer}."
        assert sum(message.content.count(statement) for message in told) == 1
        assert statement in told[0].content
        later = sum(_count_words(message.content) for message in told[1:] if message.role == "user")
        assert distance <= later <= distance + 30


def test_distractors_never_tell_a_code() -> None:
    rng = Random(0)
    assert not any("code" in cases.distractor(rng) for _ in range(500))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("back_to_back", [True, False])
def test_spans_are_the_assistants_words(tokenizer: ToyTokenizer, seed: int, back_to_back: bool) -> None:
    form, rng = ChatForm(tokenizer), Random(seed)
    dialogue = drill(form, rng, 2000) if back_to_back else DialogueWriter(form, rng, 2000).write()
    assert len(dialogue.ids) == 2000
    assert dialogue.spans
    for span in dialogue.spans:
        assert tokenizer.decode(dialogue.ids[: span.start]).endswith("<|open|>response<|sep|>")
        said = tokenizer.decode(dialogue.ids[span.start : span.stop])
        assert said.endswith("<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>")


def test_prompt_and_answer_make_the_rendered_dialogue(tokenizer: ToyTokenizer) -> None:
    form = ChatForm(tokenizer)
    case = make_cases("copy", 1, 0)[0]
    whole = form.render([*case.messages, cases.Message("assistant", case.answer)])
    assert form.prompt(list(case.messages)) + form.answer(case.answer) == whole.ids


def test_word_lists_have_no_doubles() -> None:
    for group in (words.KEYS, words.NAMES, words.CITIES, words.OBJECTS, words.ROOMS, words.ANIMALS):
        assert len(set(group)) == len(group)
