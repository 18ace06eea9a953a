"""What one sample of a side is made of: the runs of pytest that give it, by what is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_dtdispatch.ab.model import COUNTS, INSTRUCTIONS, TIME, Request
from pytest_dtdispatch.core.pass_rows import AnswerKind

TIME_LIMITS_S = {TIME: 300.0, COUNTS: 300.0, INSTRUCTIONS: 1800.0}  # of each process


@dataclass(frozen=True)
class Errand:
    """One run of pytest, and what it is asked for."""

    asked: AnswerKind
    flags: tuple[str, ...]


# Of a sample, one after the other. Counting repeats nothing, so another run proves which calls hit.
ERRANDS = {
    TIME: (Errand(AnswerKind.TIMES, ("--dtdispatch-rounds=20", "--dtdispatch-repeat=30")),),
    COUNTS: (
        Errand(AnswerKind.COUNTS, ("--dtdispatch-metric=counts",)),
        Errand(
            AnswerKind.PROOFS, ("--dtdispatch-metric=time", "--dtdispatch-rounds=1", "--dtdispatch-repeat=2")
        ),
    ),
    INSTRUCTIONS: (Errand(AnswerKind.INSTRUCTIONS, ("--dtdispatch-metric=instructions",)),),
}
# Pairs of the screen, and fresh ones where something differs. A number that is the same in every process
# needs no second one; a count of instructions hardly scatters, and takes minutes under callgrind.
_PAIRS: dict[str, dict[str, Any]] = {
    TIME: {},
    COUNTS: {"pairs": 1, "confirm": 1, "passes": 1},
    INSTRUCTIONS: {"pairs": 1, "confirm": 2, "passes": 1},
}


def usual_request(metric: str) -> Request:
    """Give what is asked for where nothing else is typed.

    Example:
        >>> usual_request("counts").pairs, usual_request("time").pairs
        (1, 5)
    """
    return Request(metric=metric, **_PAIRS[metric])
