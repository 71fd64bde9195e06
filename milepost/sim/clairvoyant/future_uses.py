"""What a trace will ask for: which request passes a prefix next, and how deep each one could resume.

Block ids are chained, so a prompt's ids up to a depth name the prefix, and those of a prompt that an
earlier one shares are its first ones. The trace is read once, from its end to its beginning, over runs of
consecutive ids: each stretch of ids remembers the request that passes it next. What a prompt finds there
is a staircase, since a longer prefix is shared later or never:

    ids of request 3    0 ............ 40 ............ 95 ...... 120
    passes next             request 5      request 9      nobody

The staircases are all that is kept: a few numbers a request, however long its prompt.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from milepost.errors import ConfigError
from milepost.sim.traces.block_tokens import BlockTokens
from milepost.sim.traces.trace import Trace

__all__ = ["NEVER", "FutureUses"]

NEVER = 1 << 60
"""Number of a request that does not come."""

_BUCKET = 12  # bits: ids of one bucket of stretches; few enough that its lists stay short


class FutureUses:
    """The future of a trace of blocks. Requests go by their number, from 0 in order of arrival.

    Args:
        trace: of blocks whose ids are equal where the tokens are.

    Attributes:
        number: of each request, by its id.
        arrivals: seconds, by number.
        prompts: by number.
        resumes: tokens that each request shares with an earlier one, in whole blocks, the last token left
            out: where it would resume if every state were kept. 0 for nowhere.

    Raises:
        ConfigError: a trace of token ids, or one that does not say which tokens are equal.
    """

    def __init__(self, trace: Trace) -> None:
        self.block_size = trace.block_size
        self.number = {request.request_id: i for i, request in enumerate(trace.requests)}
        self.arrivals = [request.arrival for request in trace.requests]
        self.prompts = _prompts(trace)
        self._stairs: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._first = _Stretches()
        self._read()
        self.resumes = self._deepest()
        self._resuming: dict[int, list[int]] = {}
        for number, position in enumerate(self.resumes):
            if position:
                self._resuming.setdefault(self.id_at(number, position), []).append(number)
        self._places = sorted(self._resuming)

    def id_at(self, number: int, position: int) -> int:
        """Id of the block of request `number` that ends at `position`, above 0: the name of that prefix."""
        return self.prompts[number].block_id(position // self.block_size - 1)

    def first_through(self, block_id: int) -> int:
        """The first request whose prompt holds the block; `NEVER` if none does."""
        return self._first.get(block_id)

    def next_through(self, number: int, position: int) -> int:
        """The first request after `number` that shares its first `position` tokens; `NEVER` if none does."""
        ends, following = self._stairs[number]
        stair = bisect_left(ends, position)
        return following[stair] if stair < len(ends) else NEVER

    def next_resuming(self, block_id: int, after: int) -> int:
        """The first request after `after` that would resume right behind this block; `NEVER` if none does."""
        numbers = self._resuming.get(block_id)
        if numbers is None:
            return NEVER
        place = bisect_right(numbers, after)
        return numbers[place] if place < len(numbers) else NEVER

    def places(self, number: int, begin: int) -> Iterator[tuple[int, int]]:
        """Places above `begin` tokens in prompt `number` where later requests would resume, ascending.

        Yields:
            The place in tokens, and the number of the first of those requests.
        """
        size, depth = self.block_size, 0
        whole = self.prompts[number].num_prompt // size * size
        for run in self.prompts[number].runs:
            first = max(0, begin // size - depth)
            low = bisect_left(self._places, run.start + first)
            for place in range(low, bisect_left(self._places, run.stop)):
                block_id = self._places[place]
                following = self.next_resuming(block_id, number)
                position = (depth + block_id - run.start + 1) * size
                if following != NEVER and position <= whole:
                    yield position, following
            depth += len(run)

    def _read(self) -> None:
        size = self.block_size
        for number in range(len(self.prompts) - 1, -1, -1):
            ends: list[int] = []
            following: list[int] = []
            depth = 0
            for run in self.prompts[number].runs:
                for stop, passing in self._first.replace(run.start, run.stop, number):
                    end = (depth + stop - run.start) * size
                    if following and following[-1] == passing:
                        ends[-1] = end
                    else:
                        ends.append(end)
                        following.append(passing)
                depth += len(run)
            self._stairs.append((tuple(ends), tuple(following)))
        self._stairs.reverse()

    def _deepest(self) -> list[int]:
        """By request the deepest stair that leads to it, less its own last token."""
        size = self.block_size
        deepest = [0] * len(self.prompts)
        for prompt, (ends, following) in zip(self.prompts, self._stairs, strict=True):
            whole = prompt.num_prompt // size * size  # no state stands behind a block that is partly filled
            for end, number in zip(ends, following, strict=True):
                if end > deepest[number]:
                    longest = (self.prompts[number].num_prompt - 1) // size * size
                    deepest[number] = max(deepest[number], min(end, longest, whole))
        return deepest


class _Stretches:
    """A number for each id, kept for stretches of consecutive ids that have the same."""

    def __init__(self) -> None:
        self._buckets: dict[int, tuple[list[int], list[int], list[int]]] = {}

    def get(self, block_id: int) -> int:
        """The number of an id; `NEVER` if it has none."""
        starts, stops, numbers = self._buckets.get(block_id >> _BUCKET, ([], [], []))
        place = bisect_right(stops, block_id)
        return numbers[place] if place < len(stops) and starts[place] <= block_id else NEVER

    def replace(self, start: int, stop: int, number: int) -> Iterator[tuple[int, int]]:
        """Give the ids from `start` to before `stop` this number.

        Yields:
            What they had before, in order: the end of a stretch and its number; ids without one left out.
        """
        while start < stop:
            bucket = start >> _BUCKET
            end = min(stop, (bucket + 1) << _BUCKET)
            yield from self._replace(self._buckets.setdefault(bucket, ([], [], [])), start, end, number)
            start = end

    @staticmethod
    def _replace(
        bucket: tuple[list[int], list[int], list[int]], start: int, stop: int, number: int
    ) -> list[tuple[int, int]]:
        starts, stops, numbers = bucket
        first = bisect_right(stops, start)
        last = bisect_left(starts, stop)
        had = [(min(stops[i], stop), numbers[i]) for i in range(first, last)]
        new_starts, new_stops, new_numbers = [start], [stop], [number]
        if first < last and starts[first] < start:
            new_starts.insert(0, starts[first])
            new_stops.insert(0, start)
            new_numbers.insert(0, numbers[first])
        if first < last and stops[last - 1] > stop:
            new_starts.append(stop)
            new_stops.append(stops[last - 1])
            new_numbers.append(numbers[last - 1])
        starts[first:last], stops[first:last], numbers[first:last] = new_starts, new_stops, new_numbers
        return had


def _prompts(trace: Trace) -> Sequence[BlockTokens]:
    prompts = [request.prompt for request in trace.requests if isinstance(request.prompt, BlockTokens)]
    if not trace.has_content or len(prompts) < len(trace.requests):
        raise ConfigError(
            "clairvoyant needs a trace of blocks whose ids say which tokens are equal, such as Mooncake's. "
            f"Given: a trace in the form {trace.form}."
        )
    return prompts
