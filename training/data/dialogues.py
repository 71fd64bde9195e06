"""Long dialogues with many questions in them, so that one sequence supervises recall many times."""

from dataclasses import dataclass, field
from random import Random

from training import cases, words
from training.cases import Fact, Message
from training.chat import ChatForm

_SYSTEM = (
    "You are a helpful assistant.",
    "You are a careful assistant. Answer briefly.",
    "Remember what you are told.",
)
_ACKNOWLEDGED = "Noted."
_SHORT = 513
"""Up to this many tokens a dialogue is mostly questions."""


@dataclass
class Span:
    """A half-open range of token positions that an assistant must produce, and the task it belongs to."""

    start: int
    stop: int
    kind: str


@dataclass
class Dialogue:
    """Token ids, and the answers among them."""

    ids: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


class DialogueWriter:
    """Writes one dialogue of a wanted length: facts are told, other talk follows, and facts are asked for.

    Near the end questions dominate, so that far facts are asked for often.
    """

    def __init__(self, form: ChatForm, rng: Random, length: int) -> None:
        self._form, self._rng, self._length = form, rng, length
        self._dialogue = Dialogue()
        self._facts: list[Fact] = []
        self._unasked: list[Fact] = []
        self._taken: set[str] = set()
        self._relations = self._choose_relations()
        self._max_facts = max(4, length // rng.choice((24, 32, 48, 96, 192)))
        short = length <= _SHORT
        self._chatter = rng.choice((0.0, 0.1, 0.3) if short else (0.1, 0.4, 0.8))
        self._tasks = rng.choice((0.0, 0.1, 0.3))
        self._eager_early, self._eager_late = (0.7, 0.8) if short else (0.35, 0.8)
        self._ask_at_once = 0.8 if short else 0.3

    def write(self) -> Dialogue:
        """The dialogue, cut at the wanted length."""
        if self._rng.random() < 0.2:
            self._append([Message("system", self._rng.choice(_SYSTEM))], "system")
        if self._rng.random() < 0.2:
            self._task("talk")
        while len(self._dialogue.ids) < self._length:
            self._next_turn()
        dialogue = self._dialogue
        spans = [span for span in dialogue.spans if span.stop <= self._length]
        return Dialogue(dialogue.ids[: self._length], spans)

    def _choose_relations(self) -> list[cases.Relation]:
        kind = self._rng.random()
        if kind < 0.85:
            return [cases.CODE] if kind < 0.6 else [cases.CODE, cases.LONG_CODE]
        return self._rng.sample(cases.RELATIONS, self._rng.randrange(1, len(cases.RELATIONS) + 1))

    def _next_turn(self) -> None:
        """Choose between telling, asking, a short task and distractors."""
        rng = self._rng
        progress = len(self._dialogue.ids) / self._length
        if not self._facts and rng.random() < 0.7:
            self._tell()
        elif self._facts and rng.random() < self._eagerness(progress):
            self._ask()
        elif rng.random() < self._tasks:
            self._short_task()
        elif rng.random() < self._chatter or len(self._facts) >= self._max_facts:
            self._distract()
        else:
            self._tell()

    def _eagerness(self, progress: float) -> float:
        """How likely the next turn asks: more near the end, less when everything was asked already."""
        eagerness = self._eager_late if progress > 0.65 else self._eager_early
        return eagerness if self._unasked else eagerness * 0.5

    def _tell(self) -> None:
        rng = self._rng
        wanted = min(rng.randrange(1, 7), max(1, self._max_facts - len(self._facts)))
        drawn = [fact for fact in (self._draw() for _ in range(wanted)) if fact]
        self._facts += drawn
        self._unasked += drawn
        sentences = [fact.statement for fact in drawn]
        if rng.random() < self._chatter:
            sentences += [cases.distractor(rng) for _ in range(rng.randrange(1, 4))]
            rng.shuffle(sentences)
        if not sentences:
            return
        if rng.random() < self._ask_at_once:
            asked, kind = self._choose_asked()
            self._exchange(" ".join([*sentences, asked.question]), asked.answer, kind)
        else:
            self._exchange(" ".join(sentences), _ACKNOWLEDGED, "ack")

    def _draw(self) -> Fact | None:
        try:
            return self._rng.choice(self._relations).draw(self._rng, self._taken)
        except ValueError:  # a dialogue can use up all names
            return None

    def _ask(self) -> None:
        if len(self._facts) > 1 and self._rng.random() < 0.12:
            several = self._rng.sample(self._facts, self._rng.randrange(2, min(6, len(self._facts) + 1)))
            self._unasked = [fact for fact in self._unasked if fact not in several]
            question = " ".join(fact.question for fact in several)
            self._exchange(question, ", ".join(fact.answer for fact in several), "recall_list")
        else:
            fact, kind = self._choose_asked()
            if self._rng.random() < 0.15:
                self._exchange(f"{fact.question} {cases.IN_A_SENTENCE}", fact.statement, "sentence")
            else:
                self._exchange(fact.question, fact.answer, kind)

    def _choose_asked(self) -> tuple[Fact, str]:
        """A fact to ask for, mostly a new one; asking ``again`` can be answered from the earlier answer."""
        if self._unasked and self._rng.random() < 0.9:
            fact = self._unasked.pop(self._rng.randrange(len(self._unasked)))
            return fact, _recall_kind(fact)
        fact = self._rng.choice(self._facts)
        if fact in self._unasked:
            self._unasked.remove(fact)
            return fact, _recall_kind(fact)
        return fact, "again"

    def _short_task(self) -> None:
        self._task(self._rng.choice(("copy", "copy", "digits", "count", "talk", "talk")))

    def _task(self, kind: str) -> None:
        case = cases.SHORT_TASKS[kind](self._rng)
        self._exchange(case.messages[-1].content, case.answer, kind)

    def _distract(self) -> None:
        size = self._rng.randrange(1, 3 + min(13, self._length // 64))
        self._exchange(" ".join(cases.distractor(self._rng) for _ in range(size)), _ACKNOWLEDGED, "ack")

    def _exchange(self, user: str, assistant: str, kind: str) -> None:
        self._append([Message("user", user), Message("assistant", assistant)], kind)

    def _append(self, messages: list[Message], kind: str) -> None:
        rendered, offset = self._form.render(messages), len(self._dialogue.ids)
        self._dialogue.ids += rendered.ids
        self._dialogue.spans += [
            Span(offset + start, offset + stop, kind) for start, stop in rendered.answers
        ]


def _recall_kind(fact: Fact) -> str:
    """Name codes ``recall``, as evaluation does, and count words apart: an answer spells them anew."""
    return "recall" if fact.answer.isdigit() else "recall_word"


def drill(form: ChatForm, rng: Random, length: int) -> Dialogue:
    """Exercises back to back, with little but answers in them: the quickest way to learn to look back.

    Most repeat a text, some list codes that were told a moment ago, each behind its key.
    """
    dialogue = Dialogue()
    make, kind = (_copy_exercise, "copy") if rng.random() < 0.7 else (_listing_exercise, "listing")
    while len(dialogue.ids) < length:
        rendered = form.render(make(rng, length))
        offset = len(dialogue.ids)
        dialogue.ids += rendered.ids
        dialogue.spans += [Span(offset + start, offset + stop, kind) for start, stop in rendered.answers]
    spans = [span for span in dialogue.spans if span.stop <= length]
    return Dialogue(dialogue.ids[:length], spans)


def _copy_exercise(rng: Random, _length: int) -> list[Message]:
    if rng.random() < 0.4:
        text = "".join(rng.choice("0123456789") for _ in range(rng.randrange(4, 25)))
    else:
        pool = rng.choice((words.KEYS, words.NAMES, words.CITIES, words.OBJECTS))
        text = " ".join(rng.choice(pool) for _ in range(rng.randrange(3, 25)))
    return [Message("user", f"Repeat after me:\n{text}"), Message("assistant", text)]


def _listing_exercise(rng: Random, length: int) -> list[Message]:
    """Tell several codes and ask for all of them in another order."""
    size = rng.randrange(2, min(13, max(4, length // 28)))
    keys = rng.sample(words.KEYS, min(size, len(words.KEYS)))
    codes = {key: "".join(rng.choice("0123456789") for _ in range(4)) for key in keys}
    told = " ".join(f"The code for {key} is {code}." for key, code in codes.items())
    rng.shuffle(keys)
    question = f"List the codes for {' '.join(keys)}"
    answer = ", ".join(f"{key} {codes[key]}" for key in keys)
    return [Message("user", f"{told} {question}"), Message("assistant", answer)]
