"""Whose turn it is: the rows of a step, and who gives way when memory is short."""

from __future__ import annotations

from milepost.prefix.plan import Reason
from milepost.scheduler.admission import Admission
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.lives import Lives
from milepost.scheduler.roster import Roster
from milepost.scheduler.sequence import Sequence
from milepost.scheduler.step import Step
from milepost.scheduler.transfers import Transfers

__all__ = ["Turns"]


class Turns:
    """Plans the rows of steps: suspects by themselves, else running requests first and then waiting ones.

    Args:
        config: the limits.
        lives: reserves what rows need.
        roster: where requests stand.
        transfers: load what another tier has.
        admission: lets waiting requests begin.

    Attributes:
        num_preemptions: times that a running request lost its pages.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        lives: Lives,
        roster: Roster,
        transfers: Transfers,
        admission: Admission,
    ) -> None:
        self._config = config
        self._lives = lives
        self._roster = roster
        self._transfers = transfers
        self._admission = admission
        self.num_preemptions = 0

    def plan(self, step: Step) -> None:
        """Give a step its rows; none only while what they need is on its way from another tier."""
        if self._roster.has_suspect:
            self._plan_suspect(step)
            if step.chunks or self._roster.has_suspect:
                return
        if self._plan_running(step, self._config.max_num_seqs) or not self._roster.running:
            self._admission.plan(step, self._config.max_num_seqs)

    def preempt(self, sequence: Sequence, *, keep: bool = True) -> None:
        """Take a running request's pages. It waits; its state stays as a snapshot while there is memory."""
        self._lives.end(sequence, keep=Reason.PREEMPTED if keep else None)
        self._begin_anew(sequence)
        self._roster.preempt(sequence)

    def suspect(self, sequence: Sequence, reached: int) -> None:
        """A step that was to bring `sequence` to `reached` tokens has failed, maybe because of it."""
        self._lives.end(sequence, tainted=True, to_blame=False)
        self._begin_anew(sequence)
        self._roster.suspect(sequence, reached)

    def _begin_anew(self, sequence: Sequence) -> None:
        sequence.num_computed = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1

    def _plan_suspect(self, step: Step) -> None:
        """Give the first suspect its chunk. Who holds the pages that it lacks is preempted."""
        running = self._roster.running
        if running and running[0].suspected_to:
            self._plan_running(step, 1)
        while not step.chunks and self._roster.suspect_waits:
            self._admission.plan(step, 1)
            if step.chunks or not running:
                return
            if self._roster.suspect_waits:
                self.preempt(running[-1])

    def _plan_running(self, step: Step, most_rows: int) -> bool:
        """Give running requests their chunks in order; False when one had to be preempted."""
        running = self._roster.running
        index = 0
        undisturbed = True
        while index < min(len(running), most_rows) and step.budget:
            sequence = running[index]
            count = self._lives.reserve_chunk(sequence, step.budget)
            if count:
                step.take(sequence, count)
                index += 1
                continue
            undisturbed = False
            if len(running) == 1 and self._transfers.loading:
                break  # what is on its way into the arena will land, and then can be evicted
            if len(running) == 1:
                # What it keeps cached beside its own pages is in its way.
                if not self._lives.go_private(sequence):
                    self.preempt(sequence, keep=False)
            else:
                # The last in line pays, which may be the one that asks; those before `index` have
                # their chunks and are never touched.
                self.preempt(running[-1])
        return undisturbed
