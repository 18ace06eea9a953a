"""The search for the first of several versions that regressed, with as few questions as there can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class BisectAnswer(Enum):
    """What is known of a version beside the first."""

    PASSED = "passed"
    REGRESSED = "regressed"
    UNKNOWN = "skipped"


@dataclass(frozen=True)
class Between:
    """Where the regression came in.

    Args:
        passed: the last version, by its index, that passed.
        regressed: the first that did not; all between the two were skipped.
    """

    passed: int
    regressed: int

    @property
    def skipped(self) -> range:
        """Versions between the two, of which nothing is known."""
        return range(self.passed + 1, self.regressed)


def search(count: int, ask: Callable[[int], BisectAnswer]) -> Between:
    """Search versions of which the first passed, and the last regressed.

    Each question halves what is left. One that has no answer is put of the next version to it, as long as
    there is one. Where versions passed and regressed more than once, one of these changes is found.

    Args:
        count: of versions.
        ask: says what is known of one, by its index; it is asked once of each at most.

    Example:
        >>> search(9, lambda n: BisectAnswer.REGRESSED if n >= 5 else BisectAnswer.PASSED)
        Between(passed=4, regressed=5)
    """
    passed, regressed = 0, count - 1
    unknown: set[int] = set()
    while candidates := [n for n in range(passed + 1, regressed) if n not in unknown]:
        middle = (passed + regressed) / 2
        nearest = min(candidates, key=lambda n, middle=middle: abs(n - middle))  # type: ignore[misc]
        answer = ask(nearest)
        if answer is BisectAnswer.PASSED:
            passed = nearest
        elif answer is BisectAnswer.REGRESSED:
            regressed = nearest
        else:
            unknown.add(nearest)
    return Between(passed, regressed)
