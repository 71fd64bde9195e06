"""Snapshot policies of the presets: where engines that know only blocks leave states."""

from __future__ import annotations

from milepost.prefix.plan import PromptView, Reason, SnapshotPlan
from milepost.prefix.policies.places import branch_point, points_of

__all__ = ["ChunkEnds", "EveryUnit", "LeafAndBranch"]


class EveryUnit:
    """At every match unit, and at the prompt's end: all that is computed can be found again.

    Args:
        unit: tokens between two keys.
        tails: whether the partly filled last unit is kept too, which no other prompt finds.
    """

    __slots__ = ("_tails", "_unit", "name")

    def __init__(self, unit: int, *, tails: bool) -> None:
        self._unit = unit
        self._tails = tails
        self.name = f"every({unit})"

    def plan(self, view: PromptView) -> SnapshotPlan:
        """Multiples of the unit, and the end."""
        end = ((view.num_prompt, Reason.PROMPT_TAIL),) if self._tails else ()
        return SnapshotPlan(points=points_of(view, end), periods=(self._unit,))

    def observe(self, view: PromptView) -> None:
        """Learn nothing."""


class LeafAndBranch:
    """At the prompt's end, where the prompt leaves what is cached, and at the last computed token.

    Args:
        unit: tokens; places move down to a multiple of it.
        chunk: tokens of a chunk of the prompt after each of which a state is left too; 0 for none.
    """

    __slots__ = ("_chunk", "_unit", "name")

    def __init__(self, unit: int, chunk: int = 0) -> None:
        self._unit = unit
        self._chunk = chunk
        self.name = "leaf+branch" if not chunk else f"leaf+branch+chunk-ends({chunk})"

    def plan(self, view: PromptView) -> SnapshotPlan:
        """Each place once."""
        wanted = [*branch_point(view), (view.num_prompt, Reason.TURN)]
        if self._chunk:
            ends = range(view.hit + self._chunk, view.num_prompt, self._chunk)
            wanted += [(end, Reason.PERIOD) for end in ends]
        places = [(position - position % self._unit, reason) for position, reason in wanted]
        return SnapshotPlan(points=points_of(view, places), last=view.output_reusable)

    def observe(self, view: PromptView) -> None:
        """Learn nothing."""


class ChunkEnds:
    """Where a chunk of whole blocks ends, at the prompt's end in match units, and where prompts part.

        hit ... chunk ... | chunk ... | last whole block | tail in match units | rest

    A chunk is as long as the step's budget allows and ends where a block does; the last whole block of
    the prompt ends one too. One token is always left to be computed.

    Args:
        block_size: tokens of a block.
        match_unit: tokens between two keys.
        token_budget: most tokens of a chunk.
        retention: None to keep the state of every chunk's end; else tokens between the ends that are
            kept, a multiple of the block: 0 keeps none but the last and where prompts part.
    """

    __slots__ = ("_block", "_budget", "_retention", "_unit", "name")

    def __init__(self, block_size: int, match_unit: int, token_budget: int, retention: int | None) -> None:
        self._block = block_size
        self._unit = match_unit
        self._budget = token_budget
        self._retention = retention
        kept = "all" if retention is None else str(retention)
        self.name = f"chunk-ends({block_size},kept={kept})+tail({match_unit})"

    def plan(self, view: PromptView) -> SnapshotPlan:
        """The ends of chunks that begin at the hit, and the tail."""
        reusable = view.num_prompt - 1
        last_block = reusable - reusable % self._block
        branches = branch_point(view)
        cuts = {last_block, *(self._down(position, self._block) for position, _ in branches)}
        wanted = [(self._down(position, self._unit), reason) for position, reason in branches]
        wanted += [(end, Reason.PERIOD) for end in self._chunk_ends(view.hit, last_block, cuts)]
        wanted.append((last_block, Reason.TURN))
        wanted.append((self._down(reusable, self._unit), Reason.PROMPT_TAIL))
        return SnapshotPlan(points=points_of(view, wanted))

    def observe(self, view: PromptView) -> None:
        """Learn nothing."""

    def _chunk_ends(self, hit: int, last_block: int, cuts: set[int]) -> list[int]:
        ends: list[int] = []
        position = hit
        while position < last_block:
            whole = self._down(position + self._budget, self._block)
            # A budget below a block reaches its end in several chunks.
            end = whole if whole > position else self._down(position, self._block) + self._block
            end = min([end, *(cut for cut in cuts if cut > position)])
            position = end
            if self._retention is None or (self._retention and position % self._retention == 0):
                ends.append(position)
        return ends

    @staticmethod
    def _down(position: int, unit: int) -> int:
        return position - position % unit
