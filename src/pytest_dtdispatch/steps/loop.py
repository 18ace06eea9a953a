"""Count the steps of a loop that runs for hours: what costs time in every step is looked at in a few."""

from __future__ import annotations

from contextlib import ExitStack

from pytest_dtdispatch.steps.counter import CallNotes, StepCounter
from pytest_dtdispatch.steps.model import StepCounts
from pytest_dtdispatch.torchapi.hooks import watching_ops, watching_transfers
from pytest_dtdispatch.torchapi.ops import open_modes


class LoopCounter(StepCounter):
    """Count misses and cache entries of every step, and transfers of those steps that are looked at.

    No garbage is collected: of live objects each lap has no growth. What a lap tells of redistributions,
    collectives, wraps and unwraps is empty where the step was not looked at.
    """

    what = "a StepWatch is open"

    def __init__(self) -> None:
        super().__init__()
        self._look = ExitStack()
        self._notes: CallNotes | None = None
        self.is_looking = False

    def _put_in(self, held: ExitStack) -> None:
        held.enter_context(self._places)
        held.enter_context(watching_ops(self))
        held.callback(self.look_away)
        held.callback(self.end_notes)

    def lap(self) -> StepCounts:
        """Return what was counted since the last lap, or since entry, and begin to count anew."""
        return self._with_entries(self._counted())

    def quiet_lap(self) -> int | None:
        """Begin to count anew where there were hits alone, and return how many calls; else do nothing.

        It is what most steps are: a watch must not cost what they take.
        """
        hits, misses = self._thread.native()
        if self._log or self.is_looking or misses or hits < 0 or self._caches.entries() != self._entries:
            return None
        calls = hits + self._python_hits + self._unpropagated
        self._begin()
        return calls

    def look(self) -> None:
        """Look at transfers from now on."""
        if not self.is_looking:
            self._look.enter_context(watching_transfers(self._transfers))
            self.is_looking = True

    def look_away(self) -> None:
        """Look at transfers no more."""
        self.is_looking = False
        self._look.close()

    def begin_notes(self) -> None:
        """Note every op from now on; not below modes of the program, which may be closed before this is."""
        if not open_modes():
            self._notes = CallNotes(self)
            self._notes.__enter__()

    def end_notes(self) -> None:
        """Note no more ops. While a mode that the program opened since is open, ours is too."""
        if self._notes is None:
            return
        self._notes.is_on = False
        if open_modes()[-1:] == [self._notes]:
            self._notes.__exit__(None, None, None)
            self._notes = None
