"""Dialogues with checkable answers, made from seeds alone: the tasks of training and of evaluation.

This module needs neither torch nor a model, so that a serving engine can be asked exactly what
``training/evaluate.py`` asks: a :class:`Case` is a list of chat messages, the string that a greedy answer
must equal, and how many tokens lie between the fact and the question.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from training import words

CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Message:
    """One chat message; the role is ``system``, ``user`` or ``assistant``."""

    role: str
    content: str


@dataclass(frozen=True)
class Case:
    """A dialogue that ends in a user's question, and the only right answer to it."""

    kind: str
    messages: tuple[Message, ...]
    answer: str
    distance: int = 0
    """Tokens of distractors between the fact and the question (recall only)."""


@dataclass(frozen=True)
class Fact:
    """Something told once that can be asked later."""

    statement: str
    question: str
    answer: str


@dataclass(frozen=True)
class Relation:
    """A family of facts; ``{key}`` and ``{value}`` are filled in."""

    statement: str
    question: str
    draw_key: Callable[[Random], str]
    draw_value: Callable[[Random], str]

    def draw(self, rng: Random, taken: set[str]) -> Fact:
        """Draw a fact whose key is not ``taken`` yet, and take it."""
        for _ in range(1000):
            key = self.draw_key(rng)
            statement, question = (
                self.statement.format(key=key, value="{value}"),
                self.question.format(key=key),
            )
            if question not in taken:
                taken.add(question)
                value = self.draw_value(rng)
                return Fact(statement.format(value=value), question, value)
        raise ValueError(f"no key left for {self.question!r}. Taken: {len(taken)}")


def _digits(rng: Random) -> str:
    return "".join(rng.choice("0123456789") for _ in range(4))


def _key(rng: Random) -> str:
    return rng.choice(words.KEYS)


def _long_key(rng: Random) -> str:
    return f"{rng.choice(words.ADJECTIVES)} {rng.choice(words.KEYS)}"


def _choose(options: Sequence[str]) -> Callable[[Random], str]:
    return lambda rng: rng.choice(options)


CODE = Relation("The code for {key} is {value}.", "What is the code for {key}?", _key, _digits)
LONG_CODE = Relation("The code for {key} is {value}.", "What is the code for {key}?", _long_key, _digits)
HOME = Relation(
    "{key} lives in {value}.", "Where does {key} live?", _choose(words.NAMES), _choose(words.CITIES)
)
PLACE = Relation(
    "The {key} is in the {value}.", "Where is the {key}?", _choose(words.OBJECTS), _choose(words.ROOMS)
)
PET = Relation(
    "{key} has a {value}.", "Which animal does {key} have?", _choose(words.NAMES), _choose(words.ANIMALS)
)
RELATIONS = (CODE, LONG_CODE, HOME, PLACE, PET)


IN_A_SENTENCE = "Answer in a sentence."
"""After a question, it asks for the statement instead of the bare value."""


def distractor(rng: Random) -> str:
    """A sentence that tells nothing which any relation asks for."""
    adjective, noun, other = rng.choice(words.ADJECTIVES), rng.choice(words.KEYS), rng.choice(words.KEYS)
    name, city, day = rng.choice(words.NAMES), rng.choice(words.CITIES), rng.choice(words.DAYS)
    template = rng.choice(
        (
            "The {adjective} {noun} stood near the {other}.",
            "On {day} {name} walked to the {noun}.",
            "{name} likes the {adjective} {noun}.",
            "It was a {adjective} {day} in {city}.",
            "They saw a {noun} and a {other} on {day}.",
            "{name} wrote a letter about the {noun}.",
            "The train to {city} was late on {day}.",
            "A {adjective} {noun} is better than a {other}.",
            "{name} went from {city} to the {noun} and came back on {day}.",
            "There are {number} steps between the {noun} and the {other}.",
        )
    )
    number = str(rng.randrange(10, 1000))
    return template.format(
        adjective=adjective, noun=noun, other=other, name=name, city=city, day=day, number=number
    )


def recall_case(
    rng: Random, distance: int, count_tokens: CountTokens, keys: int = 4, sentence: bool = False
) -> Case:
    """Tell ``keys`` codes and ask for one of them after ``distance`` tokens of other text.

    The other text is distractor sentences in several user turns; the remaining codes are spread around the
    asked one and through the distractors. A ``sentence`` repeats the statement, else the answer is the code.
    """
    taken: set[str] = set()
    facts = [CODE.draw(rng, taken) for _ in range(keys)]
    asked, others = facts[0], facts[1:]
    before = rng.randrange(len(others) + 1)
    told = [fact.statement for fact in (*others[:before], asked)]
    messages = [Message("user", " ".join(told)), Message("assistant", "Noted.")]
    messages += _distractor_turns(rng, distance, count_tokens, [fact.statement for fact in others[before:]])
    if sentence:
        messages.append(Message("user", f"{asked.question} {IN_A_SENTENCE}"))
        return Case("sentence", tuple(messages), asked.statement, distance)
    messages.append(Message("user", asked.question))
    return Case("recall", tuple(messages), asked.answer, distance)


def _distractor_turns(
    rng: Random, distance: int, count_tokens: CountTokens, extra: list[str]
) -> list[Message]:
    """User turns of about ``distance`` tokens together, with the ``extra`` statements among them."""
    sentences = list(extra)
    total = sum(count_tokens(sentence) for sentence in sentences)
    while total < distance:
        sentence = distractor(rng)
        total += count_tokens(sentence)
        sentences.append(sentence)
    rng.shuffle(sentences)
    messages = []
    while sentences:
        size = rng.randrange(4, 16)
        messages += [Message("user", " ".join(sentences[:size])), Message("assistant", "Noted.")]
        sentences = sentences[size:]
    return messages


def copy_case(rng: Random, length: int | None = None) -> Case:
    """Repeat a list of words."""
    text = " ".join(rng.choice(words.KEYS) for _ in range(length or rng.randrange(3, 17)))
    return Case("copy", (Message("user", f"Repeat after me:\n{text}"),), text)


def digits_case(rng: Random, length: int | None = None) -> Case:
    """Repeat a string of digits."""
    text = "".join(rng.choice("0123456789") for _ in range(length or rng.randrange(4, 21)))
    return Case("digits", (Message("user", f"Repeat after me:\n{text}"),), text)


def count_case(rng: Random) -> Case:
    """Say how many words a short list has."""
    size = rng.randrange(1, 10)
    text = " ".join(rng.choice(words.ANIMALS) for _ in range(size))
    return Case("count", (Message("user", f"How many words are here: {text}"),), str(size))


def sequence_case(rng: Random) -> Case:
    """Count from one number to another."""
    start = rng.randrange(1, 40)
    stop = start + rng.randrange(2, 8)
    text = " ".join(str(number) for number in range(start, stop + 1))
    return Case("sequence", (Message("user", f"Count from {start} to {stop}."),), text)


def sum_case(rng: Random) -> Case:
    """Add two numbers below fifty."""
    first, second = rng.randrange(50), rng.randrange(50)
    return Case("sum", (Message("user", f"What is {first} plus {second}?"),), str(first + second))


_TALK = (
    ("Hello!", "Hello! How can I help you?"),
    ("Hi there.", "Hello! How can I help you?"),
    ("Good morning.", "Good morning! How can I help you?"),
    ("How are you?", "I am well, thank you."),
    ("Who are you?", "I am the small model that ships with Milepost."),
    ("What are you?", "I am the small model that ships with Milepost."),
    ("What is your name?", "I have no name. I am the small model that ships with Milepost."),
    ("What can you do?", "I remember the codes that you tell me."),
    ("What is Milepost?", "Milepost is an inference engine for hybrid linear-attention models."),
    ("Thank you.", "You are welcome."),
    ("Thanks!", "You are welcome."),
    ("Goodbye.", "Goodbye!"),
)


def talk_case(rng: Random) -> Case:
    """A greeting or a question about the model itself."""
    question, answer = rng.choice(_TALK)
    return Case("talk", (Message("user", question),), answer)


RECALL_KINDS = ("recall", "sentence")
SHORT_TASKS: dict[str, Callable[[Random], Case]] = {
    "copy": copy_case,
    "digits": digits_case,
    "count": count_case,
    "sequence": sequence_case,
    "sum": sum_case,
    "talk": talk_case,
}


def make_cases(
    kind: str, count: int, seed: int, count_tokens: CountTokens = len, distance: int = 0, keys: int = 4
) -> list[Case]:
    """Make ``count`` cases of one kind; equal arguments make equal cases.

    Args:
        kind: One of :data:`RECALL_KINDS` or a key of :data:`SHORT_TASKS`.
        count: How many.
        seed: Together with the kind and the distance it decides everything.
        count_tokens: Length of a text in tokens (recall only).
        distance: Tokens between the fact and the question (recall only).
        keys: How many codes are told (recall only).
    """
    cases = []
    for index in range(count):
        rng = Random(f"{kind}-{seed}-{distance}-{keys}-{index}")
        if kind in RECALL_KINDS:
            cases.append(recall_case(rng, distance, count_tokens, keys, sentence=kind == "sentence"))
        else:
            cases.append(SHORT_TASKS[kind](rng))
    return cases
