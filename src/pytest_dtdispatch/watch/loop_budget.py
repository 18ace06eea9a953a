"""The budget of the coming steps of a loop: it is told where they begin and end, and runs none itself."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from dataclasses import replace

from pytest_dtdispatch.budget.located import PlaceLog
from pytest_dtdispatch.budget.measure import take_budget
from pytest_dtdispatch.budget.model import Budget


class LoopBudget:
    """A budget that is being taken.

    Args:
        steps: that are measured undisturbed, and as many of each other level.
        first: number of the first step that it takes.
    """

    def __init__(self, steps: int, first: int) -> None:
        self._taking = take_budget(steps, f"steps from {first:,} on", _following)
        self._first = self._next = first
        self._is_in_step = False

    def begin_step(self) -> Budget | None:
        """Be told that a step begins; return the budget where it needs no more of them."""
        self._is_in_step = True
        try:
            next(self._taking)
        except StopIteration as done:
            budget: Budget = done.value
            return replace(budget, name=f"steps {self._first:,} to {self._next - 1:,}")
        return None

    def end_step(self) -> None:
        """Be told that a step has ended; the first began before this was asked for."""
        if self._is_in_step:
            next(self._taking)
            self._next += 1

    def close(self) -> None:
        """Leave it where it is, and take everything out."""
        self._taking.close()


def _following(log: PlaceLog) -> AbstractContextManager[None]:
    """Follow the functions too that run already, such as the one that has the loop."""
    return log.noting_inside(sys._getframe().f_back)
