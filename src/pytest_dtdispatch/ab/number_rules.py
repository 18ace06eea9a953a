"""The rules of an A/B run of counts and of instructions, which hardly differ from process to process."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_dtdispatch.ab.judge import Sides, Values, percent
from pytest_dtdispatch.ab.model import CONFIRM, COUNTS, SCREEN, Request, state_of
from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict

GREW = "find what made it grow; --dtdispatch-metric counts lists what each count consists of, and where"
SLOWER = "find what grew: --dtdispatch-metric instructions -o dtdispatch_profile=true on both sides"
GONE = "the head did not measure it: restore the test"
OTHER_BUILD = "another build, Python or meter on one side; --control off judges anyway"


@dataclass(frozen=True)
class NumberPair:
    """One number in every process of both sides."""

    base: tuple[float, ...]
    head: tuple[float, ...]

    @property
    def differs(self) -> bool:
        """Whether any process has another number than any other."""
        return len({*self.base, *self.head}) > 1

    @property
    def shift(self) -> float:
        """From the least of the base to the least of the head, in logarithms; both are above 0."""
        return math.log(min(self.head) / min(self.base))

    def exact_verdict(self) -> Verdict:
        """Judge a count, of which less is better; sides that differ and overlap cannot be told apart."""
        if not self.differs:
            return Verdict.PASSED
        if min(self.head) > max(self.base):
            return Verdict.REGRESSED
        return Verdict.IMPROVED if max(self.head) < min(self.base) else Verdict.INCONCLUSIVE

    def near_verdict(self, threshold: float) -> Verdict:
        """Judge a count of instructions by the least of each side: accidents only ever add."""
        ratio = min(self.head) / min(self.base) - 1
        if abs(ratio) <= threshold:
            return Verdict.PASSED
        return Verdict.REGRESSED if ratio > 0 else Verdict.IMPROVED

    @property
    def figures(self) -> tuple[tuple[str, float], ...]:
        """What a verdict is told with: the least and the most of each side."""
        return (
            ("base_least", min(self.base)),
            ("base_most", max(self.base)),
            ("head_least", min(self.head)),
            ("head_most", max(self.head)),
        )


@dataclass(frozen=True)
class NumberStage:
    """Both sides compared.

    Args:
        asked: for the metric, and its threshold.
        pairs: numbers that every process has.
        missing: numbers that only the base has.
        new: numbers that only the head has.
        partial: numbers that some processes do not have, and how many do.
        control: shift of plain tensors, in logarithms, if any were counted.
    """

    asked: Request
    pairs: Mapping[str, NumberPair]
    missing: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    partial: Mapping[str, str] = field(default_factory=dict)
    control: float | None = None

    @property
    def is_contaminated(self) -> bool:
        """Whether plain tensors shifted too far for the rest to be judged."""
        return 0 < math.log1p(self.asked.control) < abs(self.control or 0.0)

    def verdict_of(self, pair: NumberPair) -> Verdict:
        """Judge one number by the rule of its metric."""
        if self.is_contaminated:
            return Verdict.CONTAMINATED
        return (
            pair.exact_verdict() if self.asked.metric == COUNTS else pair.near_verdict(self.asked.threshold)
        )

    def tripped(self) -> list[str]:
        """Numbers that fresh processes must look at."""
        return [row for row, pair in self.pairs.items() if self.verdict_of(pair) is not Verdict.PASSED]

    @property
    def is_suspect(self) -> bool:
        """Whether fresh processes must look at anything."""
        return bool(self.tripped() or self.partial)

    def verdicts(self) -> list[RowVerdict]:
        """Judge every number."""
        judged = [self._judged(row, pair) for row, pair in self.pairs.items()]
        judged += [
            RowVerdict(row, Verdict.INCONCLUSIVE, (), f"measured in {measured}: see the log")
            for row, measured in self.partial.items()
        ]
        judged += [RowVerdict(row, Verdict.MISSING, (), GONE) for row in self.missing]
        return [*judged, *(RowVerdict(row, Verdict.NEW) for row in self.new)]

    def _judged(self, row: str, pair: NumberPair) -> RowVerdict:
        verdict = self.verdict_of(pair)
        is_count = self.asked.metric == COUNTS
        moved = f"plain tensors shifted by {percent(self.control or 0.0):+.1f} %"
        remedies = {
            Verdict.REGRESSED: GREW if is_count else SLOWER,
            Verdict.INCONCLUSIVE: "it varies from process to process: fix what is random, or --confirm more",
            Verdict.CONTAMINATED: f"{moved}: {OTHER_BUILD}",
        }
        shift = () if is_count else (("shift_percent", percent(pair.shift)),)
        return RowVerdict(row, verdict, (*pair.figures, *shift), remedies.get(verdict, ""))


def compare_numbers(base: Sequence[Values], head: Sequence[Values], asked: Request) -> NumberStage:
    """Compare the numbers of all processes of both sides."""
    before, after = (Counter(row for process in side for row in process) for side in (base, head))
    rows = [row for row in {**before, **after} if not _is_control(row, asked)]
    whole = [row for row in rows if before[row] == len(base) and after[row] == len(head)]
    both = [row for row in rows if row in before and row in after]
    return NumberStage(
        asked,
        {row: _pair(row, base, head) for row in whole},
        missing=tuple(row for row in rows if row not in after),
        new=tuple(row for row in rows if row not in before),
        partial={
            row: f"{before[row]} of {len(base)} and {after[row]} of {len(head)} processes"
            for row in both
            if row not in whole
        },
        control=_control_shift(base, head, asked),
    )


def screen_numbers(asked: Request, taken: Callable[..., Sides]) -> NumberStage:
    """Compare a screen; where anything tripped, compare all processes of it and of fresh ones.

    Args:
        asked: for the metric and its rule.
        taken: gives the processes of both sides in the stages that it is told.
    """
    stage = compare_numbers(*taken(SCREEN), asked)
    return compare_numbers(*taken(SCREEN, CONFIRM), asked) if stage.is_suspect else stage


def _pair(row: str, base: Sequence[Values], head: Sequence[Values]) -> NumberPair:
    return NumberPair(tuple(one[row] for one in base), tuple(one[row] for one in head))


def _is_control(row: str, asked: Request) -> bool:
    return asked.metric != COUNTS and state_of(row) == State.LOCAL


def _control_shift(base: Sequence[Values], head: Sequence[Values], asked: Request) -> float | None:
    """Give the shift of plain tensors: the mean over those that every process counted."""
    first, *others = [*base, *head]
    controls = [row for row in first if _is_control(row, asked) and all(row in one for one in others)]
    return statistics.fmean(_pair(row, base, head).shift for row in controls) if controls else None
