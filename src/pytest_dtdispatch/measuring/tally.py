"""Figures by state: those that were proved, and why others were refused. Without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from pytest_dtdispatch.core.measurement import Refused, State

T = TypeVar("T")
NOT_COUNTED = "the meter did not count"


class Tally:
    """Samples of one subject, in the order they were taken.

    Example:
        >>> from pytest_dtdispatch.core.measurement import Samples
        >>> tally = Tally()
        >>> tally.enter(State.CALL, 7)
        >>> tally.enter(State.CALL, 9, "it compiled")
        >>> [(samples.ns, str(samples.refused[0])) for samples in tally.recorded(Samples)]
        [((7,), 'it compiled (1x)')]
    """

    def __init__(self) -> None:
        self._figures: dict[State, list[int]] = {}
        self._refused: Counter[tuple[State, str]] = Counter()

    def enter(self, state: State, figure: int, why_not: str = "") -> None:
        """Record a figure, or where there is a reason against it, refuse it."""
        if why_not:
            self.refuse(state, why_not)
        else:
            self._figures.setdefault(state, []).append(figure)

    def refuse(self, state: State, reason: str) -> None:
        """Count a sample that was taken and is not recorded."""
        self._refused[state, reason] += 1

    def has(self, state: State) -> bool:
        """Whether a figure of a state was recorded."""
        return bool(self._figures.get(state))

    def figures(self, state: State) -> Sequence[int]:
        """Give what was recorded of a state so far."""
        return self._figures.get(state, ())

    def recorded(self, kind: Callable[[State, tuple[int, ...], tuple[Refused, ...]], T]) -> tuple[T, ...]:
        """Give what was tried, state by state, as samples or as counts of instructions."""
        tried = {*self._figures, *(state for state, _ in self._refused)}
        return tuple(
            kind(
                state,
                tuple(self._figures.get(state, ())),
                tuple(Refused(why, count) for (of, why), count in self._refused.items() if of is state),
            )
            for state in State
            if state in tried
        )
