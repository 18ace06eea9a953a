"""How much slower a row may become."""

from __future__ import annotations

from typing import NamedTuple

THRESHOLD_STATES = ("miss", "hit", "cold", "call", "compile-cold", "compile-warm", "eager")
THRESHOLD_FIELDS = ("min", "q1", "median", "q3", "mean")


class Threshold(NamedTuple):  # which is made faster than a dataclass: every start of pytest pays for it
    """The most that one figure of a row may grow.

    Args:
        state: of the rows it holds for; of every state where empty.
        field: which figure: ``min``, ``q1``, ``median``, ``q3`` or ``mean``.
        fraction: growth that is still allowed: 0.1 is 10 %.
    """

    state: str
    field: str
    fraction: float

    def __str__(self) -> str:
        return f"{self.state + '=' if self.state else ''}{self.field}:{self.fraction * 100:g}%"


def thresholds_of(state: str, thresholds: tuple[Threshold, ...]) -> tuple[Threshold, ...]:
    """Choose what holds for a row: for each field the threshold of its state, else the one of every state.

    Example:
        >>> both = (Threshold("", "median", 0.1), Threshold("hit", "median", 0.05))
        >>> [str(threshold) for threshold in thresholds_of("hit", both)]
        ['hit=median:5%']
    """
    chosen: dict[str, Threshold] = {}
    for threshold in sorted(thresholds, key=lambda threshold: bool(threshold.state)):
        if threshold.state in ("", state):
            chosen[threshold.field] = threshold
    return tuple(chosen.values())
