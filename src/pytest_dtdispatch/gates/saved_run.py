"""Judge a run against a saved one: what became slower by more than its threshold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from pytest_dtdispatch.core.measurement import State
from pytest_dtdispatch.core.thresholds import Threshold
from pytest_dtdispatch.core.verdicts import RowVerdict, Verdict
from pytest_dtdispatch.gates.baseline import StateRow
from pytest_dtdispatch.stats.location import quantile
from pytest_dtdispatch.stats.resampling import Statistic, ratio_interval, smallest_past

CONFIDENCE = 0.99
MIN_SAMPLES = 8  # the least and the greatest of fewer do not cover their median with 99 %
MOST_SAMPLES = 1000  # drawn again; 2000 times as many take a second
BLOCKS = 20
MOST_CONTROL_SHIFT = 0.03
STATISTICS: dict[str, Statistic] = {
    "min": min,
    "q1": lambda values: quantile(values, 0.25),
    "median": median,
    "q3": lambda values: quantile(values, 0.75),
    "mean": fmean,
}

NEVER_SAVED = "it is not in the saved run: save a new one where the row belongs there"
GONE = "it is in the saved run and was not measured: restore the test, or save a new run"
TOO_FEW = f"fewer than {MIN_SAMPLES} samples: raise {{flag}}, in the saved run too"
NO_SAMPLES = "the saved run has no samples: save it with --benchmark-save-data"
STRADDLES = "the threshold is inside the interval: take more rounds, or compare builds with dtdispatch ab"
SLOWER = "find what slowed it, or save a new run where the cost is wanted"
CONTAMINATED = (
    "the same op on plain tensors shifted too, so it may have been the machine: run again, "
    "or compare builds with dtdispatch ab"
)


@dataclass(frozen=True)
class Judgement:
    """What a gate says of a whole run.

    Args:
        verdicts: of each row and threshold.
        control_shift: median growth of the rows on plain tensors, as a fraction; nothing where both runs
            share none.
        controls: how many they are.
    """

    verdicts: tuple[RowVerdict, ...]
    control_shift: float | None = None
    controls: int = 0

    def count(self, verdict: Verdict) -> int:
        """How many verdicts are this one."""
        return sum(row.verdict is verdict for row in self.verdicts)

    @property
    def has_compared(self) -> bool:
        """Whether any row could be told to be this side of its threshold or the other."""
        told = {Verdict.PASSED, Verdict.IMPROVED, Verdict.REGRESSED, Verdict.CONTAMINATED}
        return any(row.verdict in told for row in self.verdicts)

    @property
    def has_failed(self) -> bool:
        """Whether the run must fail.

        An inconclusive row beside others that were judged does not fail it: nothing shows on which side
        of the threshold it lies.
        """
        harmless = {Verdict.PASSED, Verdict.IMPROVED, Verdict.NEW, Verdict.INCONCLUSIVE}
        return not self.has_compared or any(row.verdict not in harmless for row in self.verdicts)

    @property
    def unresolved(self) -> tuple[RowVerdict, ...]:
        """Rows whose threshold is under what they could resolve, the worst first."""
        rows = [row for row in self.verdicts if row.figures and not _resolves(row)]
        return tuple(sorted(rows, key=lambda row: -dict(row.figures)["resolution_percent"]))


def not_judged(verdict: Verdict, why: str, remedy: str = "") -> Judgement:
    """Say of every row at once why it could not be judged."""
    return Judgement((RowVerdict(why, verdict, (), remedy),))


def judge_run(
    base: Sequence[StateRow], head: Sequence[StateRow], thresholds: Callable[[StateRow], Sequence[Threshold]]
) -> Judgement:
    """Judge every row that has a threshold.

    Regressed is a row whose whole interval of the ratio, with 99 % by bootstrap, is past its threshold;
    improved is one that has become faster by as much. Where rows on plain tensors, in which no dispatch is,
    shifted by more than 3 % in the median, the machine may have done it: such a row is contaminated, and not
    regressed. A row under its threshold passes all the same.

    Example:
        >>> steady = tuple(float(n) for n in range(100, 120))
        >>> then = StateRow("t.py::test_a::hit", State.HIT, steady)
        >>> now = StateRow("t.py::test_a::hit", State.HIT, tuple(1.5 * ns for ns in steady))
        >>> judgement = judge_run([then], [now], lambda row: [Threshold("", "median", 0.1)])
        >>> str(judgement.verdicts[0].verdict), judgement.has_failed
        ('regressed', True)
    """
    then, now = {row.name: row for row in base}, {row.name: row for row in head}
    shifts = list(_control_shifts(then, now))
    shift = math.expm1(median(shifts)) if shifts else None
    verdicts: list[RowVerdict] = []
    for row in _every_row(then, now):
        for threshold in thresholds(row):
            verdict = _judge_row(then.get(row.name), now.get(row.name), threshold)
            if shift is not None and abs(shift) > MOST_CONTROL_SHIFT:
                verdict = _doubted(verdict)
            verdicts.append(verdict)
    return Judgement(tuple(verdicts), shift, len(shifts))


def _resolves(row: RowVerdict) -> bool:
    figures = dict(row.figures)
    return figures["resolution_percent"] <= figures["threshold_percent"]


def _every_row(then: Mapping[str, StateRow], now: Mapping[str, StateRow]) -> Iterator[StateRow]:
    for row in {**now, **{name: row for name, row in then.items() if name not in now}}.values():
        if row.state is not State.LOCAL:
            yield row


def _control_shifts(then: Mapping[str, StateRow], now: Mapping[str, StateRow]) -> Iterator[float]:
    for name, row in now.items():
        if row.state is State.LOCAL and name in then:
            base, head = _figure(then[name], "median"), _figure(row, "median")
            if base and head:
                yield math.log(head / base)


def _figure(row: StateRow, field: str) -> float | None:
    return STATISTICS[field](row.ns) if row.ns else dict(row.figures).get(field)


def _doubted(verdict: RowVerdict) -> RowVerdict:
    """Turn a change that the machine may have made into what can be said of it; what passed has passed."""
    if verdict.verdict is Verdict.REGRESSED:
        return replace(verdict, verdict=Verdict.CONTAMINATED, remedy=CONTAMINATED)
    return replace(verdict, remedy=CONTAMINATED) if verdict.verdict is Verdict.IMPROVED else verdict


def _judge_row(base: StateRow | None, head: StateRow | None, threshold: Threshold) -> RowVerdict:
    criterion = str(threshold)
    if head is None:
        assert base is not None
        return RowVerdict(base.name, Verdict.MISSING, (), GONE, criterion)
    if base is None:
        return RowVerdict(head.name, Verdict.NEW, (), NEVER_SAVED, criterion)
    then = _figure(base, threshold.field)
    if then is None:
        return RowVerdict(head.name, Verdict.INCONCLUSIVE, (), NO_SAMPLES, criterion)
    if len(head.ns) < MIN_SAMPLES or 0 < len(base.ns) < MIN_SAMPLES:
        return RowVerdict(head.name, Verdict.INCONCLUSIVE, (), _too_few(head.state), criterion)
    now = STATISTICS[threshold.field](head.ns)
    low, high = _interval(base.ns or (then,), head.ns, STATISTICS[threshold.field])
    figures = (
        ("base_ns", then),
        ("head_ns", now),
        ("ratio", now / then),
        ("ratio_low", low),
        ("ratio_high", high),
        ("threshold_percent", 100 * threshold.fraction),
        ("resolution_percent", smallest_past(now / then, low) if low > 0 else math.inf),
        ("base_samples", len(base.ns)),
        ("head_samples", len(head.ns)),
    )
    verdict, remedy = _place(low, high, 1 + threshold.fraction)
    return RowVerdict(head.name, verdict, figures, remedy, criterion)


def _too_few(state: State) -> str:
    compiles = (State.COMPILE_COLD, State.COMPILE_WARM)
    return TOO_FEW.format(
        flag="--dtdispatch-compile-rounds"
        if state in compiles
        else "--dtdispatch-rounds or --dtdispatch-max-time"
    )


def _place(low: float, high: float, most: float) -> tuple[Verdict, str]:
    if low > most:
        return Verdict.REGRESSED, SLOWER
    if high > most:
        return Verdict.INCONCLUSIVE, STRADDLES
    return (Verdict.IMPROVED, "save a new run to keep it") if high < 1 / most else (Verdict.PASSED, "")


def _interval(base: Sequence[float], head: Sequence[float], statistic: Statistic) -> tuple[float, float]:
    base, head = _thinned(base), _thinned(head)
    block = max(1, min(len(values) for values in (base, head) if len(values) > 1) // BLOCKS)
    return ratio_interval(base, head, statistic, CONFIDENCE, block=block)


def _thinned(values: Sequence[float]) -> Sequence[float]:
    """Take samples at even distances: fewer of them only widen an interval."""
    return values[:: math.ceil(len(values) / MOST_SAMPLES)]
