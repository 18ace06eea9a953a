"""Versions held against the first of them, each with the fewest processes that a metric needs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass

from pytest_dtdispatch.ab.bisect_search import BisectAnswer
from pytest_dtdispatch.ab.judge import Sides
from pytest_dtdispatch.ab.model import CONFIRM, SCREEN, TIME, Run
from pytest_dtdispatch.ab.neighbours import compare
from pytest_dtdispatch.ab.number_rules import screen_numbers
from pytest_dtdispatch.ab.recording import Recorder
from pytest_dtdispatch.ab.worker import Progress, Workplace, laid_out, sample
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict

NO_ANSWER = (Verdict.CONTAMINATED, Verdict.INCONCLUSIVE, Verdict.MISSING)  # the first of them is told


@dataclass(frozen=True)
class AgainstFirst:
    """What one version gave beside the first.

    Args:
        verdicts: of every row.
        run: with what both were measured by.
    """

    verdicts: Sequence[RowVerdict]
    run: Run

    @property
    def regressed(self) -> list[RowVerdict]:
        """Rows that regressed."""
        return [one for one in self.verdicts if one.verdict is Verdict.REGRESSED]

    @property
    def has_compared(self) -> bool:
        """Whether any row is in both versions."""
        return any(one.verdict not in (Verdict.NEW, Verdict.MISSING) for one in self.verdicts)

    def unanswered(self, rows: Collection[str]) -> RowVerdict | None:
        """Give the row that most stands against an answer, of those that are asked for."""
        unclear = [one for one in self.verdicts if one.row in rows and one.verdict in NO_ANSWER]
        return min(unclear, key=lambda one: NO_ANSWER.index(one.verdict), default=None)

    def answer(self, rows: Collection[str]) -> BisectAnswer:
        """Say whether any of some rows regressed; there is no answer where one is unclear."""
        if any(one.row in rows for one in self.regressed):
            return BisectAnswer.REGRESSED
        return BisectAnswer.UNKNOWN if self.unanswered(rows) else BisectAnswer.PASSED


class FirstCompared:
    """Compare the first version with others, in one metric.

    Args:
        place: where processes run.
        run: what was asked for, and what the versions are; nothing is measured yet.
    """

    def __init__(self, place: Workplace, run: Run) -> None:
        self._place = place
        self._run = run
        self._recorder = Recorder(run, None)
        self._sides = tuple(run.asked.interpreters)

    def with_version(self, index: int) -> AgainstFirst:
        """Measure a version beside the first one, and judge."""
        pair = self._sides[0], self._sides[index]
        asked = self._run.asked
        if asked.metric == TIME:  # hours differ: both are measured side by side, each time
            recorder = Recorder(self._run, None)
            return AgainstFirst(compare(self._place, recorder, *pair)[pair].verdicts, recorder.run)

        def taken(*stages: str) -> Sides:
            base, head = (self._numbers(side, stages) for side in pair)
            return base, head

        verdicts = screen_numbers(asked, taken).verdicts()
        return AgainstFirst(verdicts, self._recorder.run)

    def _numbers(self, side: str, stages: Sequence[str]) -> list[dict[str, float]]:
        """Give the numbers of a side in some stages; they hardly scatter, and are taken once."""
        asked = self._run.asked
        for stage in stages:
            number = {SCREEN: asked.pairs, CONFIRM: asked.confirm}[stage]
            done = sum(one.side == side for one in self._recorder.run.of(stage))
            with closing(Progress(stage, number, done)) as progress:
                for _ in range(done, number):
                    place = laid_out(self._place, self._recorder, side)
                    self._recorder.add(sample(place, side, stage, progress))
        processes = (one for stage in stages for one in self._recorder.run.of(stage))
        return [dict(one.numbers) for one in processes if one.side == side]
