"""``dtdispatch watch``: a script runs unchanged, and its optimizer ends the steps. Imports no torch."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_dtdispatch.core.shown import printable
from pytest_dtdispatch.errors import DtDispatchError, WatchError
from pytest_dtdispatch.torchapi.first_mesh import told_of_first_mesh
from pytest_dtdispatch.watch.lines import calls_text
from pytest_dtdispatch.watch.program import Program, run
from pytest_dtdispatch.watch.saying import is_first_rank, say_on_first_rank

if TYPE_CHECKING:
    from pytest_dtdispatch.watch.step_ends import StepEnds
    from pytest_dtdispatch.watch.step_watch import StepWatch


WITHOUT_MESH = "it made no DeviceMesh, so it has no DTensors; processes that it starts are not watched"


def watch_program(program: Program, arguments: Sequence[str]) -> int:
    """Run a program, watch its steps, and print a summary however it ends; return its exit status.

    Raises:
        WatchError: it ended well, and there was nothing to watch.
    """
    watched = WatchedProgram(program.name)
    try:
        with told_of_first_mesh(watched.open):
            status = run(program, arguments)
    finally:
        watched.close()
    if watched.why_nothing and not status and is_first_rank():
        raise WatchError(watched.why_nothing)
    say_on_first_rank(watched.summary())
    return status


class WatchedProgram:
    """The watch over a program, from its first mesh on.

    Args:
        name: of the program.
    """

    def __init__(self, name: str) -> None:
        self._name = printable(name)
        self._why_not = WITHOUT_MESH
        self._watch: StepWatch | None = None
        self._ends: StepEnds | None = None
        self._thread = threading.current_thread()

    def open(self) -> None:
        """Open the watch; a program that measures by itself is not watched, and does not fail."""
        from pytest_dtdispatch.watch.step_ends import StepEnds
        from pytest_dtdispatch.watch.step_watch import StepWatch

        try:
            self._watch = StepWatch()
        except DtDispatchError as error:
            self._why_not = str(error)
            return
        self._thread = threading.current_thread()
        self._ends = StepEnds(self._step)
        self._ends.open()

    def close(self) -> None:
        """Close it."""
        if self._ends is not None:
            self._ends.close()
        if self._watch is not None:
            self._watch.close()

    @property
    def why_nothing(self) -> str:
        """Why nothing was seen; empty where something was."""
        if self._watch is None:
            return f"{self._name} was not watched: {self._why_not}"
        steps = self._watch.steps
        return "" if steps.calls or steps.after.calls else f"{self._name} called no op on DTensors"

    def summary(self) -> str:
        """Say what was seen."""
        if self._watch is None or self.why_nothing:
            return f"dtdispatch: {self.why_nothing}"
        steps = self._watch.steps
        if not len(steps):
            return (
                f"dtdispatch: {self._name}: no optimizer stepped outside of compiled code, which would have "
                f"told its steps apart; in all {calls_text(steps.after)}"
            )
        return self._watch.summary()

    def _step(self) -> None:
        if self._watch is not None and threading.current_thread() is self._thread:
            self._watch.step()
