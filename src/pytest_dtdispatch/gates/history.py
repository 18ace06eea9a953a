"""The run of a series in which a row changed: the rules on two runs, for all runs before and after."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import attrgetter
from statistics import median, median_high

from pytest_dtdispatch.core.measurement import INSTRUCTIONS_SHIFT, TIME, Clock, State, Unit
from pytest_dtdispatch.core.plain_data import Natural
from pytest_dtdispatch.core.results import MetricValue
from pytest_dtdispatch.core.row_id import RowId
from pytest_dtdispatch.core.verdicts import (
    THRESHOLD_STATES,
    CountChange,
    RowVerdict,
    Threshold,
    Verdict,
    thresholds_of,
)
from pytest_dtdispatch.gates.times import TimedRow, judge_row, plain_shifts, unusable

LEVEL_RUNS = 3  # whose median is the level of a row, so that a single run does not move it


@dataclass(frozen=True, eq=False)
class RunFigures:
    """All figures of a run.

    Args:
        times: times by row and state.
        numbers: other numbers by row and metric: exact counts, and figures of a unit other than time.
        unit: unit of its samples.
    """

    times: Mapping[RowId, TimedRow]
    numbers: Mapping[RowId, MetricValue]
    unit: Unit = TIME

    def judged(self, by_wall: Collection[RowId]) -> dict[RowId, float]:
        """Return the figures that gates judge: of these rows by wall time, else by the clock of the row."""
        usable = {row: timed.samples for row, timed in self.times.items() if not unusable(timed)}
        clocks = {row: Clock.WALL if row in by_wall else samples.clock for row, samples in usable.items()}
        times = {row: samples.least(clocks[row]) for row, samples in usable.items()}
        numbers = {row: number.value for row, number in self.numbers.items() if not number.tracers}
        return {row: figure for row, figure in (times | numbers).items() if row.state != State.LOCAL}

    def judge(self, row: RowId, later: RunFigures, threshold: Threshold) -> RowVerdict:
        """Return the verdict on a row that differs in a later run, with this run as its baseline."""
        if row in self.times:
            return judge_row(row, self.times[row], later.times[row], threshold, _plain_shift(self, later))
        then, now = self.numbers[row].value, later.numbers[row].value
        change = CountChange(then, now, 100 * (now / then - 1) if then else None)
        return RowVerdict(row, Verdict.REGRESSED if now > then else Verdict.IMPROVED, change)


@dataclass(frozen=True)
class RowChange:
    """A row that changed, appeared or disappeared in a series of runs.

    Args:
        run: position of the first changed run, from 0.
        verdict: verdict on the runs from there on against those before. Its row has a state or a metric if a
            figure changed, and no label if all rows of a test appeared or disappeared.
        is_confirmed: whether there are at least two runs before and after the change.
        figures: figure of each run; None if it has none.
    """

    run: Natural
    verdict: RowVerdict
    is_confirmed: bool
    figures: tuple[float | None, ...] = ()


def series_changes(
    runs: Sequence[RunFigures], thresholds: Mapping[str, tuple[Threshold, ...]]
) -> list[RowChange]:
    """Return the changes in a series of runs of one environment, sorted by run.

    Args:
        runs: figures of the runs, the oldest run first.
        thresholds: thresholds of markers, by test; 20 % for other tests.
    """
    changes = [*_appearances(runs)]
    # All figures of a row are by one clock.
    clocks = ((row, timed.samples.clock) for run in runs for row, timed in run.times.items())
    by_wall = {row for row, clock in clocks if clock is Clock.WALL}
    judged = [run.judged(by_wall) for run in runs]
    # A run without samples has the unit of times.
    unit = next((run.unit for run in runs if run.unit != TIME), TIME)
    for row in dict.fromkeys(chain(*judged)):
        # Counts are exact, except those of instructions; times have a threshold, of 20 % without a marker.
        threshold = Threshold("", "min", INSTRUCTIONS_SHIFT if row.state in unit.metrics else 0.0)
        if row.state in THRESHOLD_STATES:
            of_marker = thresholds_of(row.state, thresholds.get(row.test, ()))
            threshold = next(iter(of_marker), Threshold("", "min", 0.2))
        found = {n: of_run[row] for n, of_run in enumerate(judged) if row in of_run}
        positions = changed_positions([*found.values()], threshold.fraction)
        parts = [[*found][start:end] for start, end in pairwise([0, *positions, len(found)])]
        for earlier, later in pairwise(parts):
            least, least_later = (min(part, key=found.__getitem__) for part in (earlier, later))
            verdict = runs[least].judge(row, runs[least_later], threshold)
            if verdict.verdict not in (Verdict.PASSED, Verdict.INCONCLUSIVE):
                is_confirmed, figures = min(len(earlier), len(later)) > 1, map(found.get, range(len(runs)))
                changes.append(RowChange(later[0], verdict, is_confirmed, tuple(figures)))
    return sorted(changes, key=attrgetter("run"))


@functools.cache  # rows of a test often change in the same run
def _plain_shift(base: RunFigures, head: RunFigures) -> float:
    """Return the median shift of plain ops between two runs; 0 if it is unknown."""
    return median(plain_shifts(base.times, head.times) or [0.0])


def changed_positions(figures: Sequence[float], margin: float, before: int = 1, after: int = 1) -> list[int]:
    """Return the positions from which on a series of figures differs, for good, from the figures before.

    All later figures exceed the level before, the median of the first three figures; or all earlier figures
    exceed the level after, that of the last three. Therefore a single deviating figure and a change that is
    taken back have no position, and a slow drift has one.

    Args:
        figures: figures of the runs.
        margin: largest relative difference of figures that do not differ.
        before: smallest number of figures before a position; two between positions.
        after: the same after a position.

    Example:
        >>> changed_positions([7, 7, 9, 7, 7, 9, 9, 9], 0.2), changed_positions([7, 7, 9, 9, 7, 7], 0.2)
        ([5], [])
    """
    positions, factor = range(before, len(figures) - after + 1), 1 + margin
    slower = [at for at in positions if min(figures[at:]) > factor * median_high(figures[:at][:LEVEL_RUNS])]
    faster = [at for at in positions if min(figures[:at]) > factor * median_high(figures[at:][-LEVEL_RUNS:])]
    if not (slower or faster):
        return []
    at = slower[0] if slower else faster[-1]
    later = changed_positions(figures[at:], margin, 2, after)
    return [*changed_positions(figures[:at], margin, before, 2), at, *(at + each for each in later)]


def _appearances(runs: Sequence[RunFigures]) -> Iterator[RowChange]:
    """Yield rows that appeared or disappeared; all rows of a test once."""
    present: dict[RowId, list[int]] = {}
    for n, run in enumerate(runs):
        names = ((RowId(row.test), row._replace(state=None)) for row in (*run.times, *run.numbers))
        for name in dict.fromkeys(chain(*names)):
            present.setdefault(name, []).append(n)
    for name, found in present.items():
        of_test = present[RowId(name.test)] if name.label else range(len(runs))
        ends = {Verdict.NEW: (found[0], of_test[0]), Verdict.MISSING: (found[-1] + 1, of_test[-1] + 1)}
        for verdict, (at, at_of_test) in ends.items():
            if at != at_of_test:
                is_confirmed = 1 < at < len(runs) - 1 and len(found) > 1
                yield RowChange(at, RowVerdict(name, verdict), is_confirmed)
